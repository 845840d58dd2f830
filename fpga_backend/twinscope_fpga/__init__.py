"""twinscope_fpga."""
