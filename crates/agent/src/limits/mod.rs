//! Limits on what a task may use, by cgroups (version 2): memory, cpu time, number of processes. A group is also the last
//! word when a task is ended: whoever is in it dies, wherever it has put itself.
//!
//! The agent finds out once, when it starts, what its machine allows. One group per attempt is made, kept and removed by
//! the attempt's supervisor, so it outlives the agent.
//!
//! ```text
//! <delegated group>/                 the agent's own, or the one that a service manager has handed to it
//!   tenure-agent/                    the agent and the supervisors: a group with limits below has no processes of its own
//!   tenure-<data folder>/<attempt>/  the task
//! ```

mod find;
mod group;

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tenure_model::{AttemptId, Resources};
use uuid::Uuid;

pub(crate) use find::{Machine, NoGroups, Place};
pub(crate) use group::{Group, GroupOrder};

/// The agent's own group below the one that was handed to it. The same name stands in the unit for systemd, so that an
/// agent which finds itself in such a group knows that the one above is its own too.
pub(crate) const AGENT_GROUP: &str = "tenure-agent";
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// Whether tasks are limited to what they ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limits {
    /// As far as the machine allows; what it does not allow is said once.
    #[default]
    Auto,
    /// Entirely, or the agent does not start.
    Require,
    Off,
}

impl FromStr for Limits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "require" => Ok(Self::Require),
            "off" => Ok(Self::Off),
            _ => Err("write auto, require or off".into()),
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Require => "require",
            Self::Off => "off",
        })
    }
}

/// Where this agent makes groups, and what can be limited in them.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    /// All groups of this data folder.
    home: PathBuf,
    /// The agent's own, where its supervisors are too.
    own: PathBuf,
    available: HashSet<String>,
    pids: u64,
    required: bool,
}

/// What an agent needs to know for its groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes<'a> {
    pub limits: Limits,
    /// Make groups also where nothing can be limited: they still end what has escaped.
    pub bare: bool,
    /// The most processes and threads of a task.
    pub pids: u64,
    pub data_dir: &'a Path,
}

impl Groups {
    /// The groups, if there can be any, and what cannot be limited, if there is anything.
    pub fn set_up(wishes: Wishes<'_>) -> Result<(Option<Self>, Option<NoGroups>), NoGroups> {
        if wishes.limits == Limits::Off {
            return Ok((None, None));
        }
        match Self::try_set_up(wishes) {
            Ok((groups, missing)) => Ok((Some(groups), missing)),
            Err(why) if wishes.limits == Limits::Require => Err(why),
            Err(why) => Ok((None, Some(why))),
        }
    }

    fn try_set_up(wishes: Wishes<'_>) -> Result<(Self, Option<NoGroups>), NoGroups> {
        let Place { base, own } = find::place(&Machine::here()?)?;
        let available = enable(&base);
        let missing: Vec<&str> =
            CONTROLLERS.into_iter().filter(|controller| !available.contains(*controller)).collect();
        let missing = (!missing.is_empty())
            .then(|| NoGroups::NoControllers { at: base.clone(), missing: missing.join(", ") });
        let enough = match wishes.limits {
            Limits::Require => missing.is_none(),
            Limits::Auto | Limits::Off => wishes.bare || !available.is_empty(),
        };
        let missing = match (missing, enough) {
            (Some(missing), false) => return Err(missing),
            (missing, _) => missing,
        };
        let name = Uuid::new_v5(&Uuid::NAMESPACE_OID, wishes.data_dir.as_os_str().as_encoded_bytes());
        let home = base.join(format!("tenure-{}", &name.simple().to_string()[..12]));
        let cannot_write = |source| NoGroups::NotDelegated { at: base.clone(), source };
        match fs::create_dir(&home) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(cannot_write(error)),
            _ => {}
        }
        // What was enabled above can be enabled here: nobody but groups lives in it.
        let available = enable(&home);
        let required = wishes.limits == Limits::Require;
        Ok((Self { home, own, available, pids: wishes.pids, required }, missing))
    }

    /// What the group of this attempt shall be.
    pub fn order(&self, attempt: AttemptId, resources: &Resources) -> GroupOrder {
        let asked = |controller: &str, amount: u64| {
            (self.available.contains(controller) && amount > 0).then_some(amount)
        };
        GroupOrder {
            path: self.home.join(attempt.to_string()),
            outside: self.own.clone(),
            memory_bytes: asked("memory", resources.get(Resources::MEMORY).div_ceil(1_000)),
            cpu_thousandths: asked("cpu", resources.get(Resources::CPU)),
            pids: asked("pids", self.pids),
            required: self.required,
        }
    }

    /// Leaves nothing behind, if no task is left; the next agent makes what it needs.
    pub fn clear_away(&self) {
        // Refused while there is a group in it.
        if let Err(error) = fs::remove_dir(&self.home) {
            tracing::debug!(group = %self.home.display(), %error, "it is not removed");
        }
    }

    /// Ends and removes the groups of attempts that this agent does not hold.
    pub fn sweep(&self, held: &HashSet<AttemptId>) -> io::Result<()> {
        for entry in fs::read_dir(&self.home)? {
            let entry = entry?;
            let attempt =
                entry.file_name().to_str().and_then(|name| Uuid::parse_str(name).ok()).map(AttemptId);
            if attempt.is_some_and(|attempt| !held.contains(&attempt)) {
                Group::at(entry.path()).end();
            }
        }
        Ok(())
    }
}

/// Lets groups below this one limit what can be limited, and says what that is.
fn enable(group: &Path) -> HashSet<String> {
    let words = |name: &str| {
        let text = fs::read_to_string(group.join(name)).unwrap_or_default();
        text.split_ascii_whitespace().map(str::to_owned).collect::<HashSet<_>>()
    };
    let offered = words("cgroup.controllers");
    for controller in CONTROLLERS.into_iter().filter(|controller| offered.contains(*controller)) {
        // What came of it is read below.
        if let Err(error) = group::tell(&group.join("cgroup.subtree_control"), &format!("+{controller}")) {
            tracing::debug!(group = %group.display(), controller, %error, "it cannot be enabled");
        }
    }
    words("cgroup.subtree_control")
}
