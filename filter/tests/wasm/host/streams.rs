use std::rc::Rc;

use super::vm::{Called, Context, Vm};
use super::{Process, Role};

/// Names a stream of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamId(usize);

/// Where a stream came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    Traffic,
    Health,
    Control,
}

impl Listener {
    fn role(self) -> Role {
        match self {
            Self::Traffic => Role::Count,
            Self::Health | Self::Control => Role::Gate,
        }
    }

    fn plugin(self) -> usize {
        match self {
            Self::Traffic | Self::Health => 0,
            Self::Control => usize::MAX,
        }
    }

    pub(crate) fn filter_chain(self) -> &'static str {
        match self {
            Self::Traffic => "http",
            Self::Health => "softclose-health",
            Self::Control => "softclose-control",
        }
    }
}

/// Request headers, with what the filter can learn of the connection.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// In order; values are bytes.
    pub(crate) headers: Vec<(&'static str, Vec<u8>)>,
    /// No body and no trailers follow.
    pub(crate) end_of_stream: bool,
    pub(crate) peer: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: &str, target: impl AsRef<[u8]>) -> Self {
        let headers = vec![
            (":method", method.as_bytes().to_vec()),
            (":path", target.as_ref().to_vec()),
            (":authority", b"gateway".to_vec()),
        ];
        Self { headers, end_of_stream: true, peer: b"10.0.0.1:40000".to_vec() }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name, value.as_ref().to_vec()));
        self
    }

    pub(crate) fn with_body(self) -> Self {
        Self { end_of_stream: false, ..self }
    }

    pub(crate) fn with_peer(self, peer: impl AsRef<[u8]>) -> Self {
        Self { peer: peer.as_ref().to_vec(), ..self }
    }
}

/// An answer that was not the application's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u32,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// An HTTP stream.
#[derive(Clone)]
pub(crate) struct Stream {
    pub(crate) worker: usize,
    pub(crate) listener: Listener,
    pub(crate) request: Request,
    filter: Filter,
    /// `proxy_on_context_create` was called for it.
    created: bool,
    /// The request headers can be read: until the filter lets them through.
    pub(crate) readable: bool,
    /// The filter let the request through, or was not there.
    pub(crate) passed: bool,
    /// What was answered in place of the application.
    pub(crate) reply: Option<Reply>,
    /// What Envoy says of how it ended.
    pub(crate) details: &'static str,
    /// Answers after the first one; a stream has room for one.
    pub(crate) surplus: usize,
    pub(crate) ended: bool,
}

#[derive(Clone)]
enum Filter {
    In(Rc<Vm>, u32),
    /// Not attached, or failed under `fail_open`: the filter chain goes without it.
    Skipped,
    /// `FAIL_RELOAD` in its back-off: 503.
    Refusing,
}

impl Process {
    /// A new stream: Envoy builds its filter chain, which gives it a context number but makes no callback.
    pub(crate) fn open(&self, worker: usize, listener: Listener, request: Request) -> StreamId {
        assert!(self.workers().contains(&worker), "worker {worker} takes no streams");
        let vm = self.vm_for_stream(worker, listener.role());
        let id = StreamId(self.0.streams.borrow().len());
        let filter = match (vm, listener.role()) {
            (Some(vm), _) => {
                let (plugin, root) = vm.root(listener.plugin());
                let context = vm.face.add_context(|_| Context { root, stream: Some(id), plugin });
                Filter::In(vm, context)
            }
            (None, Role::Count) => Filter::Skipped,
            (None, Role::Gate) if self.attached(Role::Gate) => Filter::Refusing,
            (None, Role::Gate) => Filter::Skipped,
        };
        let stream = Stream {
            worker,
            listener,
            request,
            filter,
            created: false,
            readable: false,
            passed: false,
            reply: None,
            details: "via_upstream",
            surplus: 0,
            ended: false,
        };
        self.0.streams.borrow_mut().push(stream);
        id
    }

    /// The request headers reach the filter.
    pub(crate) fn request_headers(&self, id: StreamId) {
        self.with(id, |stream| stream.readable = true);
        let stream = self.stream(id);
        match &stream.filter {
            Filter::Skipped => self.with(id, |stream| stream.passed = true),
            Filter::Refusing => self.fail_stream(id),
            Filter::In(vm, context) => {
                self.create(id);
                let count = u32::try_from(stream.request.headers.len()).unwrap();
                let end = u32::from(stream.request.end_of_stream);
                let passed = self.pass(id, vm, "proxy_on_request_headers", (*context, count, end));
                self.with(id, |stream| {
                    stream.passed = passed;
                    stream.readable = !passed;
                });
                self.send_replies(vm);
            }
        }
    }

    /// A new stream whose headers reach the filter.
    pub(crate) fn request(&self, worker: usize, listener: Listener, request: Request) -> StreamId {
        let id = self.open(worker, listener, request);
        self.request_headers(id);
        id
    }

    pub(crate) fn request_body(&self, id: StreamId, size: u32, end: bool) {
        self.data(id, "proxy_on_request_body", |context| (context, size, u32::from(end)));
    }

    pub(crate) fn request_trailers(&self, id: StreamId) {
        self.data(id, "proxy_on_request_trailers", |context| (context, 1_u32));
    }

    pub(crate) fn response_headers(&self, id: StreamId, end: bool) {
        self.data(id, "proxy_on_response_headers", |context| (context, 1_u32, u32::from(end)));
    }

    pub(crate) fn response_body(&self, id: StreamId, size: u32, end: bool) {
        self.data(id, "proxy_on_response_body", |context| (context, size, u32::from(end)));
    }

    pub(crate) fn response_trailers(&self, id: StreamId) {
        self.data(id, "proxy_on_response_trailers", |context| (context, 1_u32));
    }

    /// The stream ends, be it served, reset by either side, or timed out: log, done, delete. For one whose headers never
    /// reached the filter (an earlier filter or the codec answered) Envoy creates the context only to log.
    pub(crate) fn end(&self, id: StreamId) {
        if self.with(id, |stream| std::mem::replace(&mut stream.ended, true)) {
            return;
        }
        let stream = self.stream(id);
        if let Filter::In(vm, context) = &stream.filter {
            self.create(id);
            self.log(id);
            vm.call::<_, u32>(*context, "proxy_on_done", *context);
            self.send_replies(vm);
            vm.call::<_, ()>(*context, "proxy_on_delete", *context);
            self.send_replies(vm);
            self.0.threads[stream.worker].end_later(Rc::clone(vm), *context);
        }
    }

    /// The stream is ended by somebody who did not wait for its answer.
    pub(crate) fn cut(&self, id: StreamId, details: &'static str) {
        self.with(id, |stream| stream.details = details);
        self.end(id);
    }

    /// `proxy_on_log` by itself. Envoy calls it when the stream ends; one that logs in mid-request as well is imaginable.
    pub(crate) fn log(&self, id: StreamId) {
        if let Filter::In(vm, context) = &self.stream(id).filter {
            vm.call::<_, ()>(*context, "proxy_on_log", *context);
            self.send_replies(vm);
        }
    }

    /// An internal redirect: the stream ends, and a new one with the same request begins in the same turn of the loop.
    pub(crate) fn redirect(&self, id: StreamId) -> StreamId {
        let Stream { worker, listener, request, .. } = self.stream(id);
        self.end(id);
        self.request(worker, listener, request)
    }

    /// The stream as it is.
    pub(crate) fn stream(&self, id: StreamId) -> Stream {
        self.0.streams.borrow()[id.0].clone()
    }

    /// Requests on traffic listeners that the filter has let through and that have not ended, by the host's own account.
    pub(crate) fn in_flight(&self) -> usize {
        let streams = self.0.streams.borrow();
        streams.iter().filter(|stream| stream.listener == Listener::Traffic && stream.passed && !stream.ended).count()
    }

    /// Sends what the callback that has just returned wanted to answer.
    pub(crate) fn send_replies(&self, vm: &Rc<Vm>) {
        vm.face.stopped.set(false);
        for (id, reply) in vm.face.replies.take() {
            let stream = self.stream(id);
            if stream.ended || stream.reply.is_some() {
                self.with(id, |stream| stream.surplus += 1);
                continue;
            }
            let size = u32::try_from(reply.body.len()).unwrap();
            self.with(id, |stream| stream.reply = Some(reply));
            // A local reply passes the filters of the response, ours among them.
            if let (Filter::In(vm, context), true) = (&stream.filter, stream.created) {
                vm.call::<_, u32>(*context, "proxy_on_response_headers", (*context, 4_u32, u32::from(size == 0)));
                if size > 0 {
                    vm.call::<_, u32>(*context, "proxy_on_response_body", (*context, size, 1_u32));
                }
            }
            self.end(id);
        }
    }

    fn create(&self, id: StreamId) {
        let created = self.with(id, |stream| std::mem::replace(&mut stream.created, true));
        if let (Filter::In(vm, context), false) = (&self.stream(id).filter, created) {
            vm.call::<_, ()>(*context, "proxy_on_context_create", (*context, vm.face.contexts.borrow()[context].root));
            self.send_replies(vm);
        }
    }

    /// A callback whose result lets the stream go on. On a VM that has failed, before or in it, the stream goes on without it
    /// under `fail_open`, as the counting role has it, and is answered 503 otherwise.
    fn pass<P: wasmtime::WasmParams>(&self, id: StreamId, vm: &Rc<Vm>, name: &str, arguments: P) -> bool {
        match vm.call::<P, u32>(self.context(id), name, arguments) {
            Called::Absent => true,
            Called::Returned(action) => action == 0 && !vm.face.stopped.get(),
            Called::Failed if vm.face.role == Role::Count => true,
            Called::Failed => {
                self.fail_stream(id);
                false
            }
        }
    }

    fn data<P: wasmtime::WasmParams>(&self, id: StreamId, name: &str, arguments: impl FnOnce(u32) -> P) {
        let stream = self.stream(id);
        if stream.ended {
            return;
        }
        if let (Filter::In(vm, context), true) = (&stream.filter, stream.created) {
            self.pass(id, vm, name, arguments(*context));
            self.send_replies(vm);
        }
    }

    fn context(&self, id: StreamId) -> u32 {
        match self.stream(id).filter {
            Filter::In(_, context) => context,
            Filter::Skipped | Filter::Refusing => 0,
        }
    }

    fn fail_stream(&self, id: StreamId) {
        let reply = Reply { status: 503, headers: Vec::new(), body: String::new() };
        self.with(id, |stream| {
            stream.reply.get_or_insert(reply);
        });
        self.end(id);
    }

    fn with<T>(&self, id: StreamId, change: impl FnOnce(&mut Stream) -> T) -> T {
        change(&mut self.0.streams.borrow_mut()[id.0])
    }
}
