//! The stand-in for kubelet: a pod's deletion as it runs on a node. preStop, then SIGTERM to the container's first
//! process, then SIGKILL at the end of the grace period, which began with the deletion.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Command;

use crate::agent::Agent;
use crate::ground::Gateway;
use crate::mode::Mode;
use crate::process::Process;
use crate::scenario::Scale;
use crate::story::Story;
use crate::timeline::Clock;

/// kubelet's minimumGracePeriodInSeconds (pkg/kubelet/kuberuntime/kuberuntime_container.go): however long preStop took,
/// the container gets this much between SIGTERM and SIGKILL.
const MINIMUM_GRACE: Duration = Duration::from_secs(2);

/// What became of a pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Deletion {
    pub(crate) deleted_s: f64,
    /// None if the grace period ended before the command did.
    pub(crate) pre_stop_exit: Option<i32>,
    pub(crate) pre_stop_output: Vec<String>,
    pub(crate) sigterm_s: f64,
    /// When the container's first process had ended.
    pub(crate) gone_s: f64,
    pub(crate) killed: bool,
}

/// Deletes the pod as its mode wants it; returns when its container is gone.
pub(crate) async fn delete(
    mode: Mode,
    times: &Scale,
    gateway: &mut Gateway,
    clock: Clock,
    story: &Story,
) -> Result<Deletion> {
    let grace = Duration::from_secs(u64::from(times.grace_s));
    match mode.pre_stop(times, &gateway.pod)? {
        Some(pre_stop) => delete_with(pre_stop, &mut gateway.agent, grace, clock, story).await,
        None => {
            story.tell("kubelet: pod deleted, no preStop, SIGTERM");
            let (deleted_s, pre_stop_output) = (clock.now(), Vec::new());
            let (gone_s, killed) = terminate(&mut gateway.agent, grace, clock, story).await;
            Ok(Deletion { deleted_s, pre_stop_exit: None, pre_stop_output, sigterm_s: deleted_s, gone_s, killed })
        }
    }
}

/// Deletes the pod with that preStop command.
pub(crate) async fn delete_with(
    mut pre_stop: Command,
    agent: &mut Agent,
    grace: Duration,
    clock: Clock,
    story: &Story,
) -> Result<Deletion> {
    let deleted_s = clock.now();
    story.tell("kubelet: pod deleted, preStop runs");
    pre_stop.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut hook = Process::spawn("preStop", pre_stop)?;
    let (out, err) = (hook.child().stdout.take(), hook.child().stderr.take());
    let out = tokio::spawn(listen(out, story.clone()));
    let err = tokio::spawn(listen(err, story.clone()));
    let ended = hook.exit(grace).await;
    // Out of time: the command goes with its container.
    hook.kill();
    let mut pre_stop_output = Vec::new();
    for words in [out, err] {
        // A grandchild that kept the pipe open must not hold up the pod.
        if let Ok(Ok(lines)) = tokio::time::timeout(Duration::from_millis(500), words).await {
            pre_stop_output.extend(lines);
        }
    }
    let pre_stop_exit = ended.and_then(|status| status.code());
    let sigterm_s = clock.now();
    story.tell(match pre_stop_exit {
        Some(code) => format!("kubelet: preStop exited {code}, SIGTERM"),
        None => "kubelet: preStop ran out of the grace period, SIGTERM".to_owned(),
    });
    let left = grace.saturating_sub(Duration::from_secs_f64((sigterm_s - deleted_s).max(0.0)));
    let (gone_s, killed) = terminate(agent, left, clock, story).await;
    Ok(Deletion { deleted_s, pre_stop_exit, pre_stop_output, sigterm_s, gone_s, killed })
}

/// SIGTERM, and SIGKILL when the grace period is over; when the container was gone, and whether it had to be killed.
async fn terminate(agent: &mut Agent, left: Duration, clock: Clock, story: &Story) -> (f64, bool) {
    agent.process.terminate();
    let killed = agent.process.exit(left.max(MINIMUM_GRACE)).await.is_none();
    if killed {
        story.tell("kubelet: grace period over, SIGKILL");
        agent.process.kill();
        agent.process.exit(MINIMUM_GRACE).await;
    }
    story.tell("kubelet: container gone");
    (clock.now(), killed)
}

/// Tells each line of the hook's output as it comes.
async fn listen(pipe: Option<impl AsyncRead + Unpin>, story: Story) -> Vec<String> {
    let mut heard = Vec::new();
    if let Some(pipe) = pipe {
        let mut lines = BufReader::new(pipe).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            story.tell(format!("preStop: {line}"));
            heard.push(line);
        }
    }
    heard
}
