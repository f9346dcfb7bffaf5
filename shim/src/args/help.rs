use crate::exit;

/// `softclose --help`.
pub(super) fn overview() -> String {
    format!(
        "\
softclose: lets an Istio ingress gateway leave an external load balancer without cutting a request

usage: softclose COMMAND [FLAGS]

  prestop    the whole way out, for lifecycle.preStop of the gateway's container
  drain      ask the gate to leave: health turns 503 once the last request has ended
  close-lb   health to 503 now, whatever is in flight
  close      end the wait for the balancer now
  reopen     stay after all
  status     where the gate stands; --verify: whether it would work
  wait       until the gate is that far
  install    puts this binary and the module into a directory, for an initContainer
  version    the version

softclose COMMAND --help says more of each. The commands talk to softclose's control listener in the same pod.

exit codes (prestop and install have their own, see their --help):
{}",
        table(&exit::OF_COMMANDS)
    )
}

/// `softclose COMMAND --help`; none if there is no such command.
pub(super) fn of(command: &str) -> Option<String> {
    let codes = table(&exit::OF_COMMANDS);
    let text = match command {
        "prestop" => return Some(prestop()),
        "drain" => format!("{DRAIN}{PLAN_FLAGS}{CONTROL_FLAG}{PRESET_NOTE}\nexit codes:\n{codes}"),
        "close-lb" => format!("{CLOSE_LB}{CONTROL_FLAG}\nexit codes:\n{codes}"),
        "close" => format!("{CLOSE}{CONTROL_FLAG}\nexit codes:\n{codes}"),
        "reopen" => format!("{REOPEN}{CONTROL_FLAG}\nexit codes:\n{codes}"),
        "status" => format!("{STATUS}{CONTROL_FLAG}\nexit codes:\n{codes}"),
        "wait" => format!("{WAIT}{CONTROL_FLAG}\nexit codes:\n{codes}"),
        "install" => format!("{INSTALL}\nexit codes:\n{}{INSTALL_EXAMPLE}", table(&exit::OF_INSTALL)),
        "version" => "usage: softclose version\n\nPrints the version of this binary.\n".to_owned(),
        _ => return None,
    };
    Some(text)
}

fn prestop() -> String {
    format!(
        "{PRESTOP}{PLAN_FLAGS}{PRESET_NOTE}{PRESTOP_LOG}\nexit codes:\n{}{PRESTOP_EXAMPLE}",
        table(&exit::OF_PRESTOP)
    )
}

fn table(codes: &[(u8, &str)]) -> String {
    codes.iter().map(|(code, meaning)| format!("  {code:>2}  {meaning}\n")).collect()
}

const PRESTOP: &str = "\
usage: softclose prestop [--grace 30s] [FLAGS]

Run by kubelet before SIGTERM. In this order:

  1. Envoy's own drain starts (POST /drain_listeners?graceful&skip_exit): responses tell clients to go elsewhere, every
     port stays open, the health answer stays 200.
  2. The gate drains: once no request is in flight, the health answer turns 503, and the balancer marks the pod DOWN.
  3. Wait until it had time to do so.
  4. If nothing was cut, Istio's agent is told to exit at once on SIGTERM.

The drain's deadline is grace - hold-max - 5s. No answer means unknown, never zero: it is asked again until the
deadline. Without softclose's filter in Envoy (fallback) Envoy's counters are polled, and its ports are closed at zero.
Run twice, or again after a kill, it joins the drain under way.

flags:
  --grace DURATION      the pod's terminationGracePeriodSeconds; ends a second before  (30s)
  --admin IP:PORT       Envoy's admin                                                   (127.0.0.1:15000)
  --control IP:PORT     softclose's control listener                                    (127.0.0.1:18181)
  --agent IP:PORT       Istio's agent                                                   (127.0.0.1:15020)

A DURATION is a whole number with ms, s, m or h; without a unit it is seconds. IP:PORT takes [::1]:PORT,
localhost:PORT and unix:/PATH; other names are not looked up.

flags of the plan; what is not given is as the gate is configured (by default as here):
";

const PLAN_FLAGS: &str =
    "  --preset NAME         the balancer's habits: haproxy; haproxy-soft (a 404 keeps new requests away);
                        haproxy-retry (it replays what is refused); nlb (DOWN cuts nothing)   (haproxy)
  --settle DURATION     no request in flight for so long, before health turns 503       (1s, at most 60s)
  --fall N              failed checks after which the balancer marks the pod DOWN       (2, at most 100)
  --margin DURATION     added to that; the learnt check interval where it is longer     (500ms, at most 60s)
  --hold-min DURATION   the shortest 503 before the pod may leave                       (0s, at most 600s)
  --hold-max DURATION   the longest                                                     (10s, at most 600s)
  --probers NAME        expected; or none, where no balancer asks for health: then a drain that nobody watched is
                        clean, and nobody is waited for                                 (expected)
  --replay-limit BYTES  haproxy-retry: the longest body that the balancer replays       (8192, at most 16777216)
";

const PRESET_NOTE: &str = "
The preset nlb holds for 3 to 4 minutes by default. Naming another preset than the gate is configured with starts from
that preset's defaults; further fields of the plan are the gate's to configure.
";

const PRESTOP_LOG: &str = "
flags of the log:
  --log text|json       the form of the lines                                           (text)
  --log-also PATH       a second place for them; none: nowhere                          (/proc/1/fd/1)
  --termination-log PATH  the last line goes there too, if the file exists; none: not   (/dev/termination-log)

A mistake in a flag never prevents the drain: it is reported, the default is used, and the exit code is 64.
";

const PRESTOP_EXAMPLE: &str = "
Any code but 0 makes kubelet record a FailedPreStopHook event, which names no code in newer versions. The last line of
the log does, and says what happened and how many requests may have been cut.

example, in the gateway's Deployment:

  spec:
    template:
      metadata:
        labels:
          softclose.dev/gate: v1
      spec:
        terminationGracePeriodSeconds: 60
        containers:
        - name: istio-proxy
          lifecycle:
            preStop:
              exec:
                command: [/opt/softclose/softclose, prestop, --grace, 60s]
";

const DRAIN: &str = "\
usage: softclose drain [FLAGS]

Asks the gate to leave: the health answer stays 200 while a request is in flight, then turns 503. Envoy's own drain is
not started (prestop does that), so clients keep their connections. A drain under way goes on unchanged.

flags; what is not given is as the gate is configured:
  --deadline DURATION   health turns 503 by then, whatever is in flight                 (none, at most 24h)
";

const CLOSE_LB: &str = "\
usage: softclose close-lb [FLAGS]

Turns the health answer 503 now, whatever is in flight: what still is when the balancer marks the pod DOWN may be
cut. Refused unless a drain is under way.

flags:
";

const CLOSE: &str = "\
usage: softclose close [FLAGS]

Ends the wait for the balancer: the pod may leave now. Refused before the balancer was told.

flags:
";

const REOPEN: &str = "\
usage: softclose reopen [FLAGS]

Turns the health answer back to 200. Warns when the balancer may have noticed the 503, and when Envoy's own drain was
started: that cannot be undone before the process restarts. Refused once the gate is CLOSED.

flags:
";

const STATUS: &str = "\
usage: softclose status [FLAGS]
       softclose status --verify [FLAGS]

Says where the gate stands: state, requests in flight and whether the count is believed, the plan, what happened, and
who probes.

With --verify it says whether a drain would be counted whole, before there is one. Does every HTTP filter chain count
first? Is it softclose that runs there, or a stand-in? Do health and control have the gate? Has every worker answered
the roll call? Which listeners can nobody count (TCP, TLS passed through, UDP)? How does Envoy drain, and has it
counters for a second opinion? It only reads: three parts of /config_dump, /server_info, the stats of requests, and
/status.

flags:
  --json                the document as it is; with --verify an object of ok, good, wrong, uncounted and hints
  --verify              look at Envoy's configuration
  --admin IP:PORT       Envoy's admin, for --verify                                     (127.0.0.1:15000)
";

const WAIT: &str = "\
usage: softclose wait [FLAGS]

Waits until the balancer was told (closing) or the pod may leave (exit). Refused when the gate is, or becomes, OPEN.

flags:
  --for closing|exit    what to wait for                                                (closing)
  --timeout DURATION    how long; ends with 69 after that                               (15s)
";

const INSTALL: &str = "\
usage: softclose install --to DIR [--module PATH]

Copies this binary (DIR/softclose, 0555) and the module (DIR/softclose.wasm, 0444), and runs the copy once where it
is. A file gets its name when it is whole: who reads or runs the old one goes on with it. What is there already with the
same bytes is left alone, so it may run again, as any user, and twice at once.

flags:
  --to DIR              a directory on a volume that the gateway's container mounts too; it is not created
  --module PATH         the module                                                      (softclose.wasm beside it)
";

const INSTALL_EXAMPLE: &str = "
example, in the gateway's Deployment:

  initContainers:
  - name: softclose-install
    image: REGISTRY/softclose:TAG
    args: [install, --to, /opt/softclose]
    volumeMounts: [{name: softclose, mountPath: /opt/softclose}]
  containers:
  - name: istio-proxy
    volumeMounts: [{name: softclose, mountPath: /opt/softclose, readOnly: true}]
  volumes:
  - name: softclose
    emptyDir: {}
";

const CONTROL_FLAG: &str =
    "  --control IP:PORT     softclose's control listener                                    (127.0.0.1:18181)
";
