//! `tenure agent`: a machine's hands. Connects to every replica of a cluster and runs what they hand out; what runs goes
//! on without it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use tenure_agent::{Access, Agent, AgentConfig, Limits, LinkState, Links, LinksConfig, Server, Trouble};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_model::credential::JOIN_TOKEN;
use tenure_model::duration::format;
use tenure_model::{NodeId, Resources};
use tenure_tls::Trust;
use tokio::sync::watch;

use crate::cli::{Failure, Globals, endpoint, trust};
use crate::data::DataFolder;
use crate::discovery::Endpoint;
use crate::node;
use crate::node_args::{NodeArgs, amount};
use crate::replica::{start_logging, stop_signal};

/// Who the agent is, in its data folder.
const IDENTITY_FILE: &str = "identity.json";

pub const HELP: &str = "\
Examples:
  tenure agent --server https://10.0.0.7:8080,https://10.0.0.8:8080 --ca ca.pem --token …
  tenure agent --name gpu-7 --label zone=b --capacity cpu=4,memory=8Gi,gpu=2
  tenure agent --taint gpu --queue default,training        only tasks that tolerate gpu, of these queues

The token is a join token (tenure node token), needed once: the agent gets an identity of its own for it, keeps it in its
folder and renews it. A token of the API works too, and is as good for everything else: prefer join tokens.
One replica is enough to begin with: the others are learned from it. SIGTERM leaves tasks running; an agent that is
started again on the same folder picks them up. See docs/cluster.md.";

/// What servers take by default; an agent does not know theirs.
const HEARTBEAT_THRESHOLD: Duration = Duration::from_secs(90);
/// As long as a task that is cut off may take to end.
const LONGEST_GRACE_CUT_OFF: Duration = Duration::from_secs(20);
/// Two heartbeats may be lost on the way.
const SHORTEST_FENCE: Duration = Duration::from_secs(15);
const SMALLEST_BACKLOG: u64 = 1024 * 1024;

#[derive(Clone, Debug, Args)]
pub struct AgentArgs {
    /// What this node is called [default: the host's name and a few signs, kept in the data folder]
    #[arg(long, env = "TENURE_AGENT_NAME", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub name: Option<String>,
    /// Folder for what runs here; made if it is not there
    #[arg(long, env = "TENURE_AGENT_DATA", value_name = "DIR", default_value = ".tenure-agent")]
    pub data: PathBuf,
    /// Whether tasks are limited to the memory and cpu they ask for: as far as the machine allows (auto), or the agent
    /// does not start (require), or not at all (off)
    #[arg(long, env = "TENURE_AGENT_LIMITS", value_name = "auto|require|off", default_value_t = Limits::Auto)]
    pub limits: Limits,
    /// The most processes and threads of one task, where that can be limited
    #[arg(long, env = "TENURE_AGENT_MAX_PIDS", value_name = "NUMBER", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(2..))]
    pub max_pids: u64,
    /// A user of this machine that tasks may ask to run as (run_as); needs an agent that is root; may be given several
    /// times [default: none but the agent's own user]
    #[arg(long, env = "TENURE_AGENT_ALLOW_RUN_AS", value_name = "USER", value_delimiter = ',')]
    pub allow_run_as: Vec<String>,
    /// Stops tasks with on_disconnect: stop when no replica has been heard for so long. With a grace of up to 20s more it
    /// must stay below the servers' heartbeat_threshold (90s), after which such a task is started elsewhere
    #[arg(long, env = "TENURE_AGENT_FENCE_AFTER", value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub fence_after: Duration,
    /// Room on disk for what one task has printed and what is not stored yet; what is too much is cut out of the middle
    #[arg(long, env = "TENURE_AGENT_LOG_BACKLOG", value_name = "SIZE", default_value = "64Mi", value_parser = size)]
    pub log_backlog: u64,
    #[command(flatten)]
    pub node: NodeArgs,
}

pub fn run(args: AgentArgs, globals: &Globals) -> ExitCode {
    start_logging();
    let found = endpoint(globals).and_then(|endpoint| {
        let trust = trust(globals, &endpoint.url)?;
        Ok::<_, Failure>((endpoint, trust))
    });
    let (endpoint, trust) = match found {
        Ok(found) => found,
        Err(failure) => {
            eprintln!("error: {failure}");
            return failure.exit_code();
        }
    };
    let Some(access) = access(&args, globals, &endpoint) else {
        eprintln!(
            "error: no token ({}), and no identity in {}: make a join token with \"tenure node token\" and give it with \
             --token or TENURE_TOKEN",
            endpoint.token_origin,
            args.data.display()
        );
        return ExitCode::FAILURE;
    };
    let servers = endpoint.url.split(',').map(str::trim).filter(|url| !url.is_empty());
    let way = Way { servers: servers.map(str::to_owned).collect(), trust, access };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve(args, way)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// To whom, and with what.
struct Way {
    servers: Vec<String>,
    trust: Trust,
    access: Access,
}

/// A join token, or an identity from before, makes the agent a node of its own; any other token is one of the API. What
/// somebody has said goes before what lies in the folder, and that before what was found on this machine.
fn access(args: &AgentArgs, globals: &Globals, endpoint: &Endpoint) -> Option<Access> {
    let file = args.data.join(IDENTITY_FILE);
    let said = globals.token.clone().filter(|token| !token.is_empty());
    match said {
        Some(token) if token.starts_with(JOIN_TOKEN) => Some(Access::Identity { file, join: Some(token) }),
        Some(token) => Some(Access::Token(token)),
        None if file.exists() => Some(Access::Identity { file, join: None }),
        None => endpoint.token.clone().map(Access::Token),
    }
}

async fn serve(args: AgentArgs, way: Way) -> Result<()> {
    let stopped = stop_signal()?;
    let (clock, entropy): (Arc<dyn Clock>, _) = (Arc::new(SystemClock), Entropy::from_os());
    let data = DataFolder::open(&args.data, &entropy)?;
    let name = match args.name {
        Some(name) => name,
        None => data.node()?,
    };
    let machine = args.node.over(node::describe(&name));
    let links = Links::new(
        LinksConfig {
            servers: way.servers,
            trust: way.trust,
            access: way.access,
            node: machine.node.clone(),
            capacity: machine.capacity,
            labels: machine.labels,
            taints: machine.taints,
            queues: machine.queues,
            version: machine.version,
        },
        Arc::clone(&clock),
        entropy.clone(),
    )?;
    if args.fence_after + LONGEST_GRACE_CUT_OFF >= HEARTBEAT_THRESHOLD {
        tracing::warn!(
            "--fence-after {} leaves no time before {}, when servers start a silent node's tasks elsewhere by default: see \
             that their heartbeat_threshold is longer",
            format(args.fence_after),
            format(HEARTBEAT_THRESHOLD),
        );
    }
    let node = machine.node.clone();
    let config = AgentConfig {
        limits: args.limits,
        pids_most: args.max_pids,
        allow_run_as: args.allow_run_as,
        fence_after: args.fence_after,
        output_most: args.log_backlog,
        ..AgentConfig::new(node, data.root.clone(), "/proc/self/exe".into(), links.logs())
    };
    let agent = Agent::start(config, Arc::new(links.clone()), clock, entropy).await?;
    let agent = Arc::new(agent);
    println!("Tenure agent {} of node {name}", env!("CARGO_PKG_VERSION"));
    println!("  data     {}", data.root.display());
    match agent.running() {
        0 => {}
        1 => println!("  tasks    1 task from before goes on"),
        n => println!("  tasks    {n} tasks from before go on"),
    }
    if let Some(why) = agent.unlimited() {
        tracing::warn!("tasks are not held to the resources they ask for: {why}");
    }
    let states = links.states();
    links.open(agent.clone());
    let ended = tokio::select! {
        signal = stopped => Ok(signal),
        hopeless = tell(states) => Err(hopeless),
    };
    if let Ok(signal) = ended {
        tracing::info!(signal, "stopping");
    }
    // The links last, because the end of what tasks have printed goes over them.
    let left_running = agent.running();
    agent.shutdown().await;
    links.close().await;
    farewell(&machine.node, left_running);
    match ended {
        Ok(_) => Ok(()),
        Err(hopeless) => bail!("{hopeless}"),
    }
}

fn farewell(node: &NodeId, left_running: usize) {
    match left_running {
        0 => println!("The agent of {node} has stopped."),
        1 => println!("The agent of {node} has stopped. 1 task keeps running; starting again picks it up."),
        n => {
            println!("The agent of {node} has stopped. {n} tasks keep running; starting again picks them up.")
        }
    }
}

/// What was said about a server last: it is said again when it is something else.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Up(String),
    Down(std::mem::Discriminant<Trouble>),
}

/// Every server that was named says no, and none will change its mind by itself; or this node may not come in at all.
#[derive(Debug)]
struct Hopeless(Vec<(Server, Trouble)>);

impl fmt::Display for Hopeless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (server, trouble)) in self.0.iter().enumerate() {
            write!(f, "{}{server}: {trouble}", if number > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

/// Says when a link comes and goes, once each. Returns when there never was one and never will be, and when the node is
/// refused for good.
async fn tell(mut states: watch::Receiver<BTreeMap<Server, LinkState>>) -> Hopeless {
    let mut said: BTreeMap<Server, Said> = BTreeMap::new();
    let mut was_up = false;
    loop {
        let now = states.borrow_and_update().clone();
        said.retain(|server, _| now.contains_key(server));
        for (server, state) in &now {
            let saying = match state {
                LinkState::Connecting | LinkState::Alias => continue,
                LinkState::Up { replica } => Said::Up(replica.clone()),
                LinkState::Down(trouble) => Said::Down(std::mem::discriminant(trouble)),
            };
            if said.get(server) == Some(&saying) {
                continue;
            }
            match state {
                LinkState::Up { replica } => tracing::info!("connected to {server} ({replica})"),
                LinkState::Down(trouble) if matches!(said.get(server), Some(Said::Up(_))) => {
                    tracing::warn!("disconnected from {server}: {trouble}; trying again");
                }
                LinkState::Down(trouble) => tracing::warn!("{server}: {trouble}; trying again"),
                LinkState::Connecting | LinkState::Alias => {}
            }
            said.insert(server.clone(), saying);
        }
        was_up |= now.values().any(|state| matches!(state, LinkState::Up { .. }));
        if let Some(refused) = refused(&now) {
            return refused;
        }
        if !was_up && let Some(hopeless) = hopeless(&now) {
            return hopeless;
        }
        if states.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn hopeless(states: &BTreeMap<Server, LinkState>) -> Option<Hopeless> {
    let no = |(server, state): (&Server, &LinkState)| match state {
        LinkState::Down(trouble) if trouble.needs_somebody() => Some((server.clone(), trouble.clone())),
        _ => None,
    };
    states.iter().map(no).collect::<Option<Vec<_>>>().map(Hopeless)
}

/// One replica's word is enough: all of them read it from the same database.
fn refused(states: &BTreeMap<Server, LinkState>) -> Option<Hopeless> {
    let no = states.iter().find_map(|(server, state)| match state {
        LinkState::Down(trouble @ Trouble::Refused { .. }) => Some((server.clone(), trouble.clone())),
        _ => None,
    });
    no.map(|no| Hopeless(vec![no]))
}

fn duration(text: &str) -> Result<Duration, String> {
    match tenure_model::duration::parse(text) {
        Ok(duration) if duration >= SHORTEST_FENCE => Ok(duration),
        Ok(_) => Err(format!("write at least {}: heartbeats come every 5s", format(SHORTEST_FENCE))),
        Err(error) => Err(error.to_string()),
    }
}

/// In bytes.
fn size(text: &str) -> Result<u64, String> {
    let (_, thousandths) = amount(&format!("{}={text}", Resources::MEMORY))?;
    match thousandths / 1_000 {
        bytes if bytes >= SMALLEST_BACKLOG => Ok(bytes),
        _ => Err("write at least 1Mi".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_gives_up_only_when_every_server_says_no() {
        let server = |number: u8| Server::parse(&format!("http://10.0.0.{number}:80")).unwrap();
        let no = LinkState::Down(Trouble::WrongToken { said: "unknown".into() });
        let away = LinkState::Down(Trouble::Unreachable { error: "refused".into() });
        let told = hopeless(&[(server(1), no.clone()), (server(2), no.clone())].into()).unwrap().to_string();
        assert!(told.contains("10.0.0.1") && told.contains("10.0.0.2") && told.contains("--token"), "{told}");
        for other in [away, LinkState::Connecting, LinkState::Up { replica: "a".into() }] {
            assert!(hopeless(&[(server(1), no.clone()), (server(2), other)].into()).is_none());
        }
    }
}
