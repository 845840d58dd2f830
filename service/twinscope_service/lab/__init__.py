"""lab: labelled cases, made by changing recorded pairs or by scoring them again with a fault."""
