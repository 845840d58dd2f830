"""The streaming FPGA engine of TwinScope: golden model, emulator, driver and simulated device."""
