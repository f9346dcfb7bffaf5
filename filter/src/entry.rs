//! What the host calls.
//!
//! The SDK's entry points want a context made before each stream, its headers and its end: three calls into the VM for one
//! request, of which each costs about as much as all that is done in it. A host that finds no `proxy_on_context_create` leaves
//! that to the module (proxy-wasm-cpp-host, `ContextBase::onCreate`), so streams have entry points of our own, and two calls.
//! Packaging gives them the ABI's names in place of the SDK's, which linking cannot: those are taken.
//!
//! Root contexts stay the SDK's.

use std::cell::RefCell;

use proxy_wasm::traits::RootContext;
use proxy_wasm::types::Action;

use crate::host;
use crate::root::{Root, on_panic, worker_of_stream};
use crate::stream::Stream;
use crate::streams::Streams;

proxy_wasm::main! {{
    std::panic::set_hook(Box::new(on_panic));
    proxy_wasm::set_root_context(|context| -> Box<dyn RootContext> { Box::new(Root::new(context)) });
}}

thread_local! {
    /// The root contexts that the SDK knows.
    static ROOTS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };

    /// The streams whose headers came, by context; never borrowed while a callback runs.
    static STREAMS: RefCell<Streams<Stream>> = const { RefCell::new(Streams::new()) };
}

unsafe extern "C" {
    safe fn proxy_on_context_create(context: u32, root: u32);
    safe fn proxy_on_configure(root: u32, size: usize) -> bool;
    safe fn proxy_on_delete(context: u32);
}

/// A root context is configured: its first callback, so that it is made here.
// SAFETY: nothing else has this name.
#[unsafe(export_name = "softclose_on_configure")]
extern "C" fn on_configure(root: u32, size: usize) -> bool {
    let is_new = ROOTS.with_borrow_mut(|roots| {
        let is_new = !roots.contains(&root);
        if is_new {
            roots.push(root);
        }
        is_new
    });
    if is_new {
        STREAMS.with_borrow_mut(Streams::make_room);
        proxy_on_context_create(root, 0);
    }
    proxy_on_configure(root, size)
}

/// A request's headers came.
// SAFETY: nothing else has this name.
#[unsafe(export_name = "softclose_on_request_headers")]
extern "C" fn on_request_headers(context: u32, _count: usize, end_of_stream: bool) -> Action {
    let Some(worker) = worker_of_stream() else { return Action::Continue };
    let (stream, action) = host::in_stream(context, || Stream::begin(worker, context, end_of_stream));
    STREAMS.with_borrow_mut(|streams| streams.insert(context, stream));
    action
}

/// A stream or a root context has ended. Of a stream without headers (an early reply, a 400) nothing is known here.
// SAFETY: nothing else has this name.
#[unsafe(export_name = "softclose_on_delete")]
extern "C" fn on_delete(context: u32) {
    match STREAMS.with_borrow_mut(|streams| streams.remove(context)) {
        Some(stream) => host::in_stream(context, || stream.end()),
        None if ROOTS.with_borrow_mut(|roots| forget(roots, context)) => proxy_on_delete(context),
        None => {}
    }
}

fn forget(roots: &mut Vec<u32>, context: u32) -> bool {
    let before = roots.len();
    roots.retain(|root| *root != context);
    roots.len() < before
}

/// A piece of a response came.
// SAFETY: nothing else has this name.
#[cfg(feature = "plant")]
#[unsafe(export_name = "softclose_on_response_body")]
extern "C" fn on_response_body(context: u32, _size: usize, _end_of_stream: bool) -> Action {
    if let Some(plant) = STREAMS.with_borrow(|streams| streams.get(context).map(Stream::plant)) {
        crate::plant::at_response_body(plant);
    }
    Action::Continue
}
