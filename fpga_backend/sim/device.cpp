// The simulated device: the engine's Verilog, compiled by Verilator, one clock at a time behind a
// plain C interface. Streams are byte buffers, as a DMA core would see them; registers go through
// the AXI-Lite port. Compile with -DLANES=n.
#include <cstdint>
#include <cstring>

#include "Vtwinscope_engine.h"
#include "verilated.h"

namespace {

constexpr size_t kBeat = 8 * LANES;
constexpr size_t kRecordBeat = 32;
constexpr size_t kTokenBeat = 16 * LANES;

struct Device {
    Vtwinscope_engine top;
    uint64_t cycles = 0;
    uint32_t random = 1;

    uint32_t draw() {  // xorshift: the same back-pressure for the same seed
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        return random & 255;
    }

    void clock() {
        top.clk = 1;
        top.eval();
        top.clk = 0;
        top.eval();
        ++cycles;
    }
};

}  // namespace

struct Transfer {
    const uint8_t* input;  // whole beats
    uint64_t input_size;
    uint64_t input_done;
    uint8_t* records;
    uint64_t records_size;
    uint64_t records_done;
    uint8_t* tokens;
    uint64_t tokens_size;
    uint64_t tokens_done;
    uint64_t records_wanted;  // stop as soon as that many bytes have come and the input is taken
    uint64_t tokens_wanted;
    uint64_t max_cycles;
    uint32_t idle_of_256;   // chance that the source pauses in a clock
    uint32_t stall_of_256;  // chance that a sink is not ready in a clock
};

extern "C" {

void* device_open(uint32_t seed) {
    auto* device = new Device;
    device->random = seed ? seed : 1;
    device->top.rst = 1;
    memset(&device->top.s_axis_tkeep, 0xFF, LANES);
    device->top.s_axis_tuser = (1u << LANES) - 1;
    device->top.eval();
    for (int i = 0; i < 8; ++i) device->clock();
    device->top.rst = 0;
    for (int i = 0; i < 128; ++i) device->clock();
    return device;
}

void device_close(void* handle) { delete static_cast<Device*>(handle); }

int device_lanes() { return LANES; }

uint64_t device_cycles(void* handle) { return static_cast<Device*>(handle)->cycles; }

// Register access: AXI response (0 okay, 2 slave error), or -1 when the slave does not answer.
int device_write(void* handle, uint32_t address, uint32_t value) {
    auto& device = *static_cast<Device*>(handle);
    auto& top = device.top;
    top.s_axil_awaddr = address & 0xFFF;
    top.s_axil_wdata = value;
    top.s_axil_wstrb = 15;
    top.s_axil_awvalid = top.s_axil_wvalid = top.s_axil_bready = 1;
    int response = -1;
    for (int i = 0; i < 64 && response < 0; ++i) {
        top.eval();
        const bool taken = top.s_axil_awready && top.s_axil_awvalid;
        if (top.s_axil_bvalid) response = top.s_axil_bresp;
        device.clock();
        if (taken) top.s_axil_awvalid = top.s_axil_wvalid = 0;
    }
    top.s_axil_bready = 0;
    return response;
}

int device_read(void* handle, uint32_t address, uint32_t* value) {
    auto& device = *static_cast<Device*>(handle);
    auto& top = device.top;
    top.s_axil_araddr = address & 0xFFF;
    top.s_axil_arvalid = top.s_axil_rready = 1;
    int response = -1;
    for (int i = 0; i < 64 && response < 0; ++i) {
        top.eval();
        const bool taken = top.s_axil_arready && top.s_axil_arvalid;
        if (top.s_axil_rvalid) {
            response = top.s_axil_rresp;
            *value = top.s_axil_rdata;
        }
        device.clock();
        if (taken) top.s_axil_arvalid = 0;
    }
    top.s_axil_rready = 0;
    return response;
}

// Run clocks until everything wanted has happened, a buffer is full or max_cycles are over.
// Returns the clocks used.
uint64_t device_transfer(void* handle, Transfer* t) {
    auto& device = *static_cast<Device*>(handle);
    auto& top = device.top;
    uint64_t used = 0;
    bool offered = false;
    for (; used < t->max_cycles; ++used) {
        const bool more = t->input_done < t->input_size;
        if (!more && t->records_done >= t->records_wanted && t->tokens_done >= t->tokens_wanted) {
            break;
        }
        if (!offered && more && !(t->idle_of_256 && device.draw() < t->idle_of_256)) {
            memcpy(&top.s_axis_tdata, t->input + t->input_done, kBeat);
            offered = true;
        }
        const bool stall = t->stall_of_256 && device.draw() < t->stall_of_256;
        const bool record_room = t->records_done + kRecordBeat <= t->records_size;
        const bool token_room = t->tokens_done + kTokenBeat <= t->tokens_size;
        top.s_axis_tvalid = offered;
        top.m_axis_tready = !stall && record_room;
        top.m_axis_token_tready = !stall && token_room;
        const bool taken = offered && top.s_axis_tready;
        if (top.m_axis_tvalid && top.m_axis_tready) {
            memcpy(t->records + t->records_done, &top.m_axis_tdata, kRecordBeat);
            t->records_done += kRecordBeat;
        }
        if (top.m_axis_token_tvalid && top.m_axis_token_tready) {
            memcpy(t->tokens + t->tokens_done, &top.m_axis_token_tdata, kTokenBeat);
            t->tokens_done += kTokenBeat;
        }
        device.clock();
        if (taken) {
            t->input_done += kBeat;
            offered = false;
        }
    }
    top.s_axis_tvalid = 0;
    top.m_axis_tready = 0;
    top.m_axis_token_tready = 0;
    return used;
}
}
