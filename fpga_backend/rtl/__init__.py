"""RTL of the streaming engine, in Amaranth; exported as Verilog for every other tool."""
