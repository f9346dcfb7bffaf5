use std::rc::Rc;
use std::time::Duration;

use proxy_wasm::types::Action;
use softclose_fsm::control::{Call, REFUSED, Rejection, STATE_HEADER, Until};
use softclose_fsm::{Deflection, Handled, Input, Path, Probe, Reply, Role, Status};

use crate::config::{Config, GateConfig};
use crate::host::{self, Level};
use crate::replay::is_replayable;
use crate::waiters::WAITERS_MAX;
use crate::worker::Worker;

/// A request, from its headers to the end of its stream.
pub(crate) enum Stream {
    /// On a traffic listener.
    Counted(Counted),
    /// On the health or control listener.
    Asked(Asked),
}

impl Stream {
    /// A request whose headers came, and whether it goes on.
    pub(crate) fn begin(worker: Rc<Worker>, context: u32, end_of_stream: bool) -> (Self, Action) {
        match worker.config.role() {
            Role::Count => {
                let (request, action) = Counted::begin(worker, end_of_stream);
                (Self::Counted(request), action)
            }
            Role::Gate => {
                let (asked, action) = Asked::begin(worker, context, end_of_stream);
                (Self::Asked(asked), action)
            }
        }
    }

    /// Its stream has ended, however that came.
    pub(crate) fn end(self) {
        match self {
            Self::Counted(request) => request.end(),
            Self::Asked(asked) => asked.end(),
        }
    }

    #[cfg(feature = "plant")]
    pub(crate) fn plant(&self) -> crate::plant::Plant {
        match self {
            Self::Counted(request) => request.plant,
            Self::Asked(_) => crate::plant::Plant::None,
        }
    }
}

/// A request on a traffic listener.
pub(crate) struct Counted {
    worker: Rc<Worker>,
    /// It is in the ledger, so its end takes it out.
    counted: bool,
    #[cfg(feature = "plant")]
    plant: crate::plant::Plant,
}

impl Counted {
    fn begin(worker: Rc<Worker>, bodiless: bool) -> (Self, Action) {
        let mut request = Self {
            worker,
            counted: false,
            #[cfg(feature = "plant")]
            plant: crate::plant::asked_for(),
        };
        // In OPEN no header is read for this.
        if request.worker.deflection().is_some_and(|deflection| request.send_back(deflection, bodiless)) {
            return (request, Action::Pause);
        }
        request.counted = request.worker.enter();
        #[cfg(feature = "plant")]
        crate::plant::at_request_headers(request.plant);
        (request, Action::Continue)
    }

    fn end(self) {
        if self.counted {
            self.worker.exit(ending);
        }
    }

    /// Sends the request back to the balancer, where that is asked for and can be done. It was never in flight, so it is not
    /// counted.
    #[cold]
    fn send_back(&self, Deflection { status, replay_limit }: Deflection, bodiless: bool) -> bool {
        let sent_back = is_replayable(bodiless, replay_limit, |name| host::request_header(name).ok())
            && host::respond(status, &[REFUSED, PLAIN, FRESH], "refused\n").is_ok();
        if sent_back {
            self.worker.count_refused();
        }
        sent_back
    }
}

/// How a request's stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With its answer, whatever that was.
    Answered,
    /// The host itself cut it.
    ByHost,
    /// Whoever asked ended it: the balancer, or a client behind it.
    ByPeer,
}

/// How the stream under way ended.
///
/// Measured on Envoy 1.40: a peer that leaves is `downstream_remote_disconnect` or `http2.remote_reset`; only a cut of Envoy's own
/// begins with `downstream_local_disconnect` (the old connections of a changed listener are closed after the drain time);
/// `response.flags` are the same for both.
fn ending() -> Ending {
    match host::property("response\0code_details").unwrap_or_default().as_slice() {
        details if details.starts_with(b"downstream_local_disconnect") => Ending::ByHost,
        b"http2.remote_reset" => Ending::ByPeer,
        details if details.starts_with(b"downstream_remote_disconnect") => Ending::ByPeer,
        _ => Ending::Answered,
    }
}

/// A request on the health or control listener. It is never counted.
pub(crate) struct Asked {
    worker: Rc<Worker>,
    context: u32,
    waiting: bool,
}

impl Asked {
    // Cold, as its end: a request on a traffic listener goes another way, which stays short.
    #[cold]
    fn begin(worker: Rc<Worker>, context: u32, end_of_stream: bool) -> (Self, Action) {
        let mut asked = Self { worker, context, waiting: false };
        let action = asked.answer(!end_of_stream);
        (asked, action)
    }

    #[cold]
    fn end(self) {
        if self.waiting {
            self.worker.waiters.borrow_mut().remove(self.context);
        }
    }

    fn answer(&mut self, has_body: bool) -> Action {
        let worker = Rc::clone(&self.worker);
        let Config::Gate(gate) = &worker.config else {
            return Action::Continue;
        };
        #[cfg(feature = "plant")]
        crate::plant::at_request_headers(crate::plant::asked_for());
        // The filter chain's name is the host's word: no client can choose it. On any other listener the request is none of ours.
        match host::property("xds\0filter_chain_name").unwrap_or_default().as_slice() {
            b"softclose-health" => self.health(gate),
            b"softclose-control" => self.control(gate, has_body),
            _ => Action::Continue,
        }
    }

    fn health(&self, gate: &GateConfig) -> Action {
        let method = host::request_header(":method").unwrap_or_default();
        let target = host::request_header(":path").unwrap_or_default();
        match gate.paths.parse(&method, &target) {
            Ok(path) => {
                let prober = match path {
                    Path::Balancer => peer(),
                    Path::Readiness => None,
                };
                let handled = self.worker.take(&Input::Probe(Probe { path, prober }));
                self.worker.arm();
                let answer = handled.record.answer(path);
                let body = format!("{}\n", answer.body);
                send(answer.status, &[(STATE_HEADER, answer.state.as_str()), PLAIN, FRESH], &body);
            }
            Err(rejection) => {
                let state = self.worker.take(&Input::Tick).record.state.name();
                let body = format!("{}\n", rejection.reason);
                let mut headers = vec![(STATE_HEADER, state.as_str()), PLAIN, FRESH];
                headers.extend(rejection.allow.map(|allow| ("allow", allow)));
                send(rejection.status, &headers, &body);
            }
        }
        Action::Pause
    }

    fn control(&mut self, gate: &GateConfig, has_body: bool) -> Action {
        let method = host::request_header(":method").unwrap_or_default();
        let target = host::request_header(":path").unwrap_or_default();
        match Call::parse(&method, &target, has_body, &gate.plan) {
            Ok(Call::Drain { plan, envoy_drain_started }) => {
                if envoy_drain_started {
                    self.worker.take(&Input::EnvoyDrainStarted);
                }
                self.command(&Input::Drain(plan));
            }
            Ok(Call::CloseLb) => self.command(&Input::CloseLb),
            Ok(Call::Close) => self.command(&Input::Close),
            Ok(Call::Reopen) => self.command(&Input::Reopen),
            Ok(Call::Observe(active)) => self.command(&Input::Observe(active)),
            Ok(Call::Status) => {
                let handled = self.worker.take(&Input::Tick);
                self.worker.arm();
                send_status(200, self.worker.status(&handled.record), None);
            }
            Ok(Call::Wait { until, after, timeout }) => self.wait(until, after, timeout),
            Err(rejection) => self.reject(rejection),
        }
        Action::Pause
    }

    fn command(&self, input: &Input) {
        let handled = self.worker.take(input);
        self.worker.arm();
        let status = self.worker.status(&handled.record);
        if handled.contended {
            let error =
                Some("other workers changed the gate at the same time, again and again; nothing was done".to_owned());
            return send_status(503, Status { error, ..status }, None);
        }
        match handled.reply {
            Reply::Accepted { warnings } => {
                let warnings = warnings.iter().map(|warning| warning.text().to_owned()).collect();
                send_status(200, Status { warnings, ..status }, None);
            }
            Reply::Refused(refusal) => {
                let error = format!("{}: {}", handled.record.state.name(), refusal.reason());
                send_status(409, Status { error: Some(error), ..status }, None);
            }
            Reply::Answer(_) | Reply::Noted => send_status(200, status, None),
        }
    }

    fn wait(&mut self, until: Until, after: Option<u64>, timeout: Duration) {
        let handled = self.worker.take(&Input::Tick);
        let known = after.unwrap_or(handled.record.changes);
        match until.status(&handled.record, known) {
            Some(status) => {
                let document = self.worker.status(&handled.record);
                let error = (status == 409).then(|| "OPEN: not draining, so there is nothing to wait for".to_owned());
                send_status(status, Status { error, ..document }, None);
            }
            None if self.worker.waiters.borrow_mut().add(self.context, until, timeout, known, handled.now) => {
                self.waiting = true;
            }
            None => {
                let error = Some(format!("{WAITERS_MAX} waits are held by this worker already"));
                send_status(503, Status { error, ..self.worker.status(&handled.record) }, None);
            }
        }
        self.worker.arm();
    }

    fn reject(&self, rejection: Rejection) {
        let handled: Handled = self.worker.take(&Input::Tick);
        let status = Status { error: Some(rejection.reason), ..self.worker.status(&handled.record) };
        send_status(rejection.status, status, rejection.allow);
    }
}

const PLAIN: (&str, &str) = ("content-type", "text/plain");
const JSON: (&str, &str) = ("content-type", "application/json");
const FRESH: (&str, &str) = ("cache-control", "no-store");

/// Answers the current stream with the status document.
pub(crate) fn send_status(status: u16, document: Status, allow: Option<&str>) {
    let warnings: Vec<String> = document.warnings.iter().map(|text| format!("199 softclose \"{text}\"")).collect();
    let mut headers = vec![(STATE_HEADER, document.state.as_str()), JSON, FRESH];
    headers.extend(warnings.iter().map(|warning| ("warning", warning.as_str())));
    headers.extend(allow.map(|allow| ("allow", allow)));
    let body = serde_json::to_string(&document).unwrap_or_default();
    send(status, &headers, &format!("{body}\n"));
}

fn send(status: u16, headers: &[(&str, &str)], body: &str) {
    if let Err(refused) = host::respond(status, headers, body) {
        host::log(Level::Error, &format!("softclose: an answer could not be sent: {refused:?}"));
    }
}

/// The peer's address without its port. The health listener believes no X-Forwarded-For, so this is the connection's own.
fn peer() -> Option<String> {
    let address = String::from_utf8(host::property("source\0address").ok()?).ok()?;
    let bare = address.rsplit_once(':').map_or(address.as_str(), |(host, _port)| host);
    Some(bare.to_owned())
}
