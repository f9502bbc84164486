//! Which user a task runs as. A dag's author must not become just anybody on a node: only those whom its operator has
//! named, and only where the agent may change its user at all.

use std::ffi::CString;

use nix::unistd::{Gid, Uid, User};
use serde::{Deserialize, Serialize};

/// A user of this machine, as the process of a task needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunAs {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: String,
    pub shell: String,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum NoUser {
    #[error(
        "the task asks to run as {user:?}, which this node does not allow: start its agent with --allow-run-as {user}, \
         or let the task run on a node that allows it"
    )]
    NotAllowed { user: String },
    #[error(
        "the task asks to run as {user:?}, but the agent of this node is {own} and not root: only root can start \
         processes of other users"
    )]
    NotRoot { user: String, own: String },
    #[error(
        "the task asks to run as {user:?}, and there is no such user on this node: check its spelling, or make it"
    )]
    Unknown { user: String },
    #[error("the task asks to run as {user:?}, whom this node cannot look up: {error}")]
    LookUp { user: String, error: String },
}

/// The agent's own user, as text; its number where it has no name.
pub(crate) fn own_name() -> String {
    let own = Uid::effective();
    match User::from_uid(own) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => own.to_string(),
    }
}

pub(crate) fn is_root() -> bool {
    Uid::effective().is_root()
}

/// Looks a user up, if it is one of the allowed. May take as long as the machine's directory service takes.
pub(crate) fn look_up(wanted: &str, allowed: &[String]) -> Result<RunAs, NoUser> {
    let user = wanted.to_owned();
    if !allowed.contains(&user) {
        return Err(NoUser::NotAllowed { user });
    }
    if !is_root() {
        return Err(NoUser::NotRoot { user, own: own_name() });
    }
    let failed = |error: nix::Error| NoUser::LookUp { user: user.clone(), error: error.to_string() };
    let found = User::from_name(wanted).map_err(failed)?.ok_or(NoUser::Unknown { user: user.clone() })?;
    let name = CString::new(wanted).map_err(|_| NoUser::Unknown { user: user.clone() })?;
    let groups = nix::unistd::getgrouplist(&name, found.gid).map_err(failed)?;
    Ok(RunAs {
        name: found.name,
        uid: found.uid.as_raw(),
        gid: found.gid.as_raw(),
        groups: groups.into_iter().map(Gid::as_raw).collect(),
        home: found.dir.display().to_string(),
        shell: found.shell.display().to_string(),
    })
}

impl RunAs {
    /// Turns this process into one of that user, for good. To be called while there is one thread only.
    pub fn take_on(&self) -> nix::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        // In this order: after the last one there is no right to do the others.
        nix::unistd::setgroups(&groups)?;
        nix::unistd::setgid(Gid::from_raw(self.gid))?;
        nix::unistd::setuid(Uid::from_raw(self.uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_users_whom_the_operator_has_named_are_looked_up() {
        let error = look_up("nobody", &["daemon".into()]).unwrap_err();
        assert_eq!(error, NoUser::NotAllowed { user: "nobody".into() });
        assert!(error.to_string().contains("--allow-run-as nobody"), "{error}");
    }

    #[test]
    fn a_user_is_found_with_its_groups_and_an_unknown_one_is_named() {
        let allowed = ["daemon".to_owned(), "no-such-user".to_owned()];
        if !is_root() {
            println!("skipped in part: only root can run as others");
            let error = look_up("daemon", &allowed).unwrap_err();
            return assert!(matches!(&error, NoUser::NotRoot { user, .. } if user == "daemon"), "{error}");
        }
        let daemon = look_up("daemon", &allowed).unwrap();
        assert!(daemon.uid > 0 && daemon.groups.contains(&daemon.gid), "{daemon:?}");
        let error = look_up("no-such-user", &allowed).unwrap_err();
        assert_eq!(error, NoUser::Unknown { user: "no-such-user".into() });
    }
}
