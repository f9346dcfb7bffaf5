//! The only file that names hostcalls.
//!
//! The SDK's own wrappers panic on a status they do not expect, and a panic here is a trapped VM in front of all traffic.
//! These return the status, whatever it is.

use std::cell::Cell;
use std::time::Duration;

use softclose_fsm::Instant;

/// What a host said instead of OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(u32);

impl Failure {
    /// The key, queue or property does not exist.
    pub(crate) const NOT_FOUND: Self = Self(1);
    /// Another writer was first.
    pub(crate) const CAS_MISMATCH: Self = Self(8);
    /// Not the host's word: it gave bytes that are not of the right form.
    pub(crate) const UNREADABLE: Self = Self(u32::MAX);
}

/// A handle of a defined metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric(u32);

/// The kind of a metric, as the ABI numbers it.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum MetricKind {
    Counter = 0,
    Gauge = 1,
}

/// Log levels of the ABI. Istio's default level is warning: anything below is never seen.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Level {
    Warn = 3,
    Error = 4,
    Critical = 5,
}

/// A shared value and the version to compare with when it is replaced.
pub(crate) struct Shared {
    pub(crate) value: Vec<u8>,
    pub(crate) cas: u32,
}

/// Creates an absent key and fails on a present one. Zero would overwrite blindly.
pub(crate) const CAS_ABSENT: u32 = u32::MAX;

/// Envoy's monotonic clock: WASI clock 1, the same in every VM. The SDK's clock is wall time and can step.
pub(crate) fn monotonic() -> Instant {
    const CLOCK_MONOTONIC: u32 = 1;
    const PRECISION: u64 = 1_000;
    let mut nanos = 0_u64;
    // SAFETY: `nanos` outlives the call, which writes eight bytes to it.
    let failed = unsafe { abi::clock_time_get(CLOCK_MONOTONIC, PRECISION, &raw mut nanos) };
    debug_assert_eq!(failed, 0, "the host has no monotonic clock");
    Instant::from_micros(nanos / 1_000)
}

pub(crate) fn log(level: Level, message: &str) {
    // SAFETY: pointer and length name `message`, which the host only reads.
    // The status is dropped: there is nowhere left to report that a log line was lost.
    let _ = unsafe { abi::proxy_log(level as u32, message.as_ptr(), message.len()) };
}

thread_local! {
    /// The stream whose callback runs; zero in a root context's.
    static STREAM: Cell<u32> = const { Cell::new(0) };
}

/// Runs a callback of stream `context`.
pub(crate) fn in_stream<T>(context: u32, callback: impl FnOnce() -> T) -> T {
    STREAM.set(context);
    let done = callback();
    STREAM.set(0);
    done
}

/// Has `hostcall` speak for the root context `root`, also in a stream's callback: that stream may belong to another one.
pub(crate) fn as_root(root: u32, hostcall: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let stream = STREAM.get();
    if stream == 0 {
        return hostcall();
    }
    speak_for(root)?;
    let done = hostcall();
    speak_for(stream)?;
    done
}

/// Asks for a tick every `period`; zero: no more ticks. Rounded up to whole milliseconds, so that a tick is never too early.
pub(crate) fn set_tick(period: Duration) -> Result<(), Failure> {
    let millis = u32::try_from(period.as_micros().div_ceil(1_000)).unwrap_or(u32::MAX);
    // SAFETY: no pointers.
    done(unsafe { abi::proxy_set_tick_period_milliseconds(millis) })
}

pub(crate) fn plugin_configuration() -> Result<Vec<u8>, Failure> {
    const PLUGIN_CONFIGURATION: u32 = 7;
    buffer(PLUGIN_CONFIGURATION)
}

pub(crate) fn vm_configuration() -> Result<Vec<u8>, Failure> {
    const VM_CONFIGURATION: u32 = 6;
    buffer(VM_CONFIGURATION)
}

/// The name of the plugin whose callback is under way.
pub(crate) fn plugin_name() -> Vec<u8> {
    property("plugin_name").unwrap_or_default()
}

fn buffer(kind: u32) -> Result<Vec<u8>, Failure> {
    // SAFETY: both out-pointers are written by the host before it answers OK.
    returned(|data, size| unsafe { abi::proxy_get_buffer_bytes(kind, 0, usize::MAX, data, size) })
}

/// A request header of the current stream, as bytes: header values need not be UTF-8.
pub(crate) fn request_header(name: &str) -> Result<Vec<u8>, Failure> {
    const REQUEST_HEADERS: u32 = 0;
    // SAFETY: `name` outlives the call; both out-pointers are written by the host before it answers OK.
    returned(|data, size| unsafe {
        abi::proxy_get_header_map_value(REQUEST_HEADERS, name.as_ptr(), name.len(), data, size)
    })
}

/// A property of the current stream; `path` is joined by NUL, as the ABI wants it.
pub(crate) fn property(path: &str) -> Result<Vec<u8>, Failure> {
    // SAFETY: `path` outlives the call; both out-pointers are written by the host before it answers OK.
    returned(|data, size| unsafe { abi::proxy_get_property(path.as_ptr(), path.len(), data, size) })
}

pub(crate) fn shared(key: &str) -> Result<Shared, Failure> {
    let mut cas = 0;
    // SAFETY: `key` outlives the call; the three out-pointers are written by the host before it answers OK.
    let value = returned(|data, size| unsafe {
        abi::proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &raw mut cas)
    })?;
    Ok(Shared { value, cas })
}

pub(crate) fn set_shared(key: &str, value: &[u8], cas: u32) -> Result<(), Failure> {
    // SAFETY: `key` and `value` outlive the call, which only reads them.
    done(unsafe { abi::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) })
}

pub(crate) fn register_queue(name: &str) -> Result<u32, Failure> {
    let mut token = 0;
    // SAFETY: `name` and `token` outlive the call.
    done(unsafe { abi::proxy_register_shared_queue(name.as_ptr(), name.len(), &raw mut token) })?;
    Ok(token)
}

pub(crate) fn enqueue(token: u32, message: &[u8]) -> Result<(), Failure> {
    // SAFETY: `message` outlives the call, which only reads it.
    done(unsafe { abi::proxy_enqueue_shared_queue(token, message.as_ptr(), message.len()) })
}

pub(crate) fn dequeue(token: u32) -> Result<Vec<u8>, Failure> {
    // SAFETY: both out-pointers are written by the host before it answers OK.
    returned(|data, size| unsafe { abi::proxy_dequeue_shared_queue(token, data, size) })
}

pub(crate) fn define_metric(kind: MetricKind, name: &str) -> Result<Metric, Failure> {
    let mut id = 0;
    // SAFETY: `name` and `id` outlive the call.
    done(unsafe { abi::proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &raw mut id) })?;
    Ok(Metric(id))
}

pub(crate) fn add(metric: Metric, offset: i64) -> Result<(), Failure> {
    // SAFETY: no pointers.
    done(unsafe { abi::proxy_increment_metric(metric.0, offset) })
}

pub(crate) fn record(metric: Metric, value: u64) -> Result<(), Failure> {
    // SAFETY: no pointers.
    done(unsafe { abi::proxy_record_metric(metric.0, value) })
}

pub(crate) fn value(metric: Metric) -> Result<u64, Failure> {
    let mut value = 0;
    // SAFETY: `value` outlives the call.
    done(unsafe { abi::proxy_get_metric(metric.0, &raw mut value) })?;
    Ok(value)
}

/// Makes `context` the one that the next hostcalls speak of.
pub(crate) fn speak_for(context: u32) -> Result<(), Failure> {
    // SAFETY: no pointers.
    done(unsafe { abi::proxy_set_effective_context(context) })
}

/// Answers the current stream. The host sends it after this callback returns.
pub(crate) fn respond(status: u16, headers: &[(&str, &str)], body: &str) -> Result<(), Failure> {
    const NO_GRPC_STATUS: i32 = -1;
    // Shows in Envoy's access log as the response code's details.
    const DETAILS: &str = "softclose";
    let headers = serialize(headers);
    // SAFETY: details, body and headers outlive the call, which only reads them.
    done(unsafe {
        abi::proxy_send_local_response(
            u32::from(status),
            DETAILS.as_ptr(),
            DETAILS.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            NO_GRPC_STATUS,
        )
    })
}

/// The ABI's form of a header map: count, then the sizes of each name and value, then each of them with a NUL behind it.
fn serialize(headers: &[(&str, &str)]) -> Vec<u8> {
    let size = |text: &str| u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&u32::try_from(headers.len()).unwrap_or(u32::MAX).to_le_bytes());
    for (name, value) in headers {
        bytes.extend_from_slice(&size(name));
        bytes.extend_from_slice(&size(value));
    }
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(0);
    }
    bytes
}

fn done(status: u32) -> Result<(), Failure> {
    if status == 0 { Ok(()) } else { Err(Failure(status)) }
}

/// Runs a call that returns bytes in memory which the host took from `proxy_on_memory_allocate`.
fn returned(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Result<Vec<u8>, Failure> {
    let mut data = std::ptr::null_mut();
    let mut size = 0;
    done(call(&raw mut data, &raw mut size))?;
    if data.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the host filled `size` bytes that it took from the SDK's allocator, which leaks a boxed slice of exactly that
    // size; nobody else owns them.
    Ok(unsafe { Vec::from_raw_parts(data, size, size) })
}

mod abi {
    #[link(wasm_import_module = "env")]
    unsafe extern "C" {
        pub(super) fn proxy_log(level: u32, message: *const u8, size: usize) -> u32;
        pub(super) fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
        pub(super) fn proxy_get_buffer_bytes(
            kind: u32,
            start: usize,
            max: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_get_header_map_value(
            map: u32,
            name: *const u8,
            name_size: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_get_property(
            path: *const u8,
            path_size: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_get_shared_data(
            key: *const u8,
            key_size: usize,
            data: *mut *mut u8,
            size: *mut usize,
            cas: *mut u32,
        ) -> u32;
        pub(super) fn proxy_set_shared_data(
            key: *const u8,
            key_size: usize,
            data: *const u8,
            size: usize,
            cas: u32,
        ) -> u32;
        pub(super) fn proxy_register_shared_queue(name: *const u8, size: usize, token: *mut u32) -> u32;
        pub(super) fn proxy_enqueue_shared_queue(token: u32, data: *const u8, size: usize) -> u32;
        pub(super) fn proxy_dequeue_shared_queue(token: u32, data: *mut *mut u8, size: *mut usize) -> u32;
        pub(super) fn proxy_define_metric(kind: u32, name: *const u8, size: usize, id: *mut u32) -> u32;
        pub(super) fn proxy_increment_metric(id: u32, offset: i64) -> u32;
        pub(super) fn proxy_record_metric(id: u32, value: u64) -> u32;
        pub(super) fn proxy_get_metric(id: u32, value: *mut u64) -> u32;
        pub(super) fn proxy_set_effective_context(context: u32) -> u32;
        pub(super) fn proxy_send_local_response(
            status: u32,
            details: *const u8,
            details_size: usize,
            body: *const u8,
            body_size: usize,
            headers: *const u8,
            headers_size: usize,
            grpc_status: i32,
        ) -> u32;
    }

    #[link(wasm_import_module = "wasi_snapshot_preview1")]
    unsafe extern "C" {
        pub(super) fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
    }
}
