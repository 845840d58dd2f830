"""How a batch travels: one declaration (`schema`), one record (`batch`), one codec (`codec`)."""
