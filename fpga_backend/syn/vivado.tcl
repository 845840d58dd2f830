# Out-of-context synthesis and implementation for an AMD part. NOT RUN: no Vivado was at hand.
#   python -m rtl.export --lanes 8 --out build/fpga/engine.v
#   vivado -mode batch -source fpga_backend/syn/vivado.tcl -tclargs build/fpga/engine.v xcku5p-ffvb676-2-e 4.0
# The multipliers and ROMs are written as plain registers and arrays; the tool maps them to DSP and
# block RAM. Delay rings become distributed RAM (or SRLs after retiming).
lassign $argv source part period
set name twinscope_engine
read_verilog $source
synth_design -top $name -part $part -mode out_of_context -retiming
create_clock -name clk -period $period [get_ports clk]
opt_design
place_design
phys_opt_design
route_design
file mkdir build/fpga/vivado
report_timing_summary -file build/fpga/vivado/timing.txt
report_utilization -hierarchical -file build/fpga/vivado/utilization.txt
report_power -file build/fpga/vivado/power.txt
write_checkpoint -force build/fpga/vivado/$name.dcp
