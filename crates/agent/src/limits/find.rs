//! Where on this machine an agent may make groups.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::AGENT_GROUP;
use super::group::tell;

/// Processes may be born while others are moved.
const MOVE_ROUNDS: u32 = 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum NoGroups {
    #[error(
        "no cgroup file system of version 2 is mounted: boot with systemd.unified_cgroup_hierarchy=1, or mount one \
         (mount -t cgroup2 none /sys/fs/cgroup)"
    )]
    NotMounted,
    #[error("its own group {0} lies outside of what is mounted: mount the cgroups of its own namespace")]
    Outside(String),
    #[error(
        "the group {} cannot be written to ({source}): run the agent as a service with Delegate=yes (see \
         deploy/systemd/tenure-agent.service), by «systemd-run --user --scope -p Delegate=yes tenure agent …», or as \
         root in a container of its own",
        at.display()
    )]
    NotDelegated { at: PathBuf, source: io::Error },
    #[error(
        "other programs ({count}) live in the agent's group {}: give it one of its own, by a service with \
         Delegate=yes (see deploy/systemd/tenure-agent.service) or «systemd-run --scope -p Delegate=yes tenure agent …»",
        at.display()
    )]
    Shared { at: PathBuf, count: usize },
    #[error(
        "the group {} does not offer {missing}: delegate them (Delegate=yes), and see that no cgroup file system of \
         version 1 holds them (boot with systemd.unified_cgroup_hierarchy=1)",
        at.display()
    )]
    NoControllers { at: PathBuf, missing: String },
    #[error("{at} cannot be read: {source}")]
    Proc { at: &'static str, source: io::Error },
}

/// What the kernel says about this process.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// `/proc/self/cgroup`.
    pub groups: String,
    /// `/proc/self/mountinfo`.
    pub mounts: String,
}

impl Machine {
    pub fn here() -> Result<Self, NoGroups> {
        let read = |at| fs::read_to_string(at).map_err(|source| NoGroups::Proc { at, source });
        Ok(Self { groups: read("/proc/self/cgroup")?, mounts: read("/proc/self/mountinfo")? })
    }

    /// Where the file system is, and the folder of this process's group in it.
    pub fn own_group(&self) -> Result<(PathBuf, PathBuf), NoGroups> {
        let (mount, root) = self.mounts.lines().find_map(cgroup2_mount).ok_or(NoGroups::NotMounted)?;
        let own =
            self.groups.lines().find_map(|line| line.strip_prefix("0::")).ok_or(NoGroups::NotMounted)?;
        let outside = || NoGroups::Outside(own.to_owned());
        let below = Path::new(own).strip_prefix(&root).map_err(|_| outside())?;
        if below.components().any(|part| part.as_os_str() == "..") {
            return Err(outside());
        }
        Ok((mount.clone(), mount.join(below)))
    }
}

/// `36 25 0:30 /root /mount/point options [optional fields] - cgroup2 cgroup2 rw`
fn cgroup2_mount(line: &str) -> Option<(PathBuf, PathBuf)> {
    let (before, after) = line.split_once(" - ")?;
    if after.split(' ').next() != Some("cgroup2") {
        return None;
    }
    let mut fields = before.split(' ').skip(3);
    let (root, mount) = (fields.next()?, fields.next()?);
    // Spaces and the like are written in octal; groups are never mounted at such a place.
    (!mount.contains('\\')).then(|| (mount.into(), root.into()))
}

/// The group below which others may be made, and the one in which the agent is (from now on).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub base: PathBuf,
    pub own: PathBuf,
}

/// Finds the group that the agent may use, and makes room in it.
pub(crate) fn place(machine: &Machine) -> Result<Place, NoGroups> {
    let (mount, own) = machine.own_group()?;
    if own != mount && own.ends_with(AGENT_GROUP) {
        let base = own.parent().expect("it ends with a name").to_owned();
        return Ok(Place { base, own });
    }
    // Only the root of all groups may have processes beside limited groups; it alone has no such file.
    if !own.join("cgroup.events").exists() {
        return Ok(Place { base: own.clone(), own });
    }
    let not_delegated = |source| NoGroups::NotDelegated { at: own.clone(), source };
    let others = processes_in(&own).map_err(not_delegated)?;
    let others = others.into_iter().filter(|pid| *pid != std::process::id()).count();
    // In a container everything there is belongs together, and may be moved.
    if others > 0 && own != mount {
        return Err(NoGroups::Shared { at: own, count: others });
    }
    let leaf = own.join(AGENT_GROUP);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(not_delegated(error)),
        _ => {}
    }
    move_all(&own, &leaf).map_err(not_delegated)?;
    Ok(Place { base: own, own: leaf })
}

fn move_all(from: &Path, to: &Path) -> io::Result<()> {
    for _ in 0..MOVE_ROUNDS {
        let left = processes_in(from)?;
        if left.is_empty() {
            return Ok(());
        }
        for pid in left {
            match tell(&to.join("cgroup.procs"), &pid.to_string()) {
                // It has ended in the meantime.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                moved => moved?,
            }
        }
    }
    Err(io::Error::other("new processes appear in it again and again"))
}

fn processes_in(group: &Path) -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    //! Goal: an agent knows its own group on every kind of machine. Method: what /proc says there, as text.
    use super::*;

    fn own_group(groups: &str, mounts: &str) -> Result<(PathBuf, PathBuf), NoGroups> {
        Machine { groups: groups.into(), mounts: mounts.into() }.own_group()
    }

    #[test]
    fn a_service_finds_its_group_on_a_unified_machine() {
        let mounts = "24 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = own_group("0::/system.slice/tenure-agent.service\n", mounts).unwrap();
        assert_eq!(found.0, Path::new("/sys/fs/cgroup"));
        assert_eq!(found.1, Path::new("/sys/fs/cgroup/system.slice/tenure-agent.service"));
    }

    #[test]
    fn beside_version_1_the_unified_tree_is_found_where_it_is_mounted() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 23 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = own_group("4:memory:/process/7\n0::/\n", mounts).unwrap();
        assert_eq!(found.1, Path::new("/sys/fs/cgroup/unified"));
    }

    #[test]
    fn a_container_that_sees_only_its_part_of_the_tree_finds_itself_in_it() {
        let mounts = "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        assert_eq!(own_group("0::/docker/abc/x\n", mounts).unwrap().1, Path::new("/sys/fs/cgroup/x"));
        let outside = own_group("0::/elsewhere\n", mounts).unwrap_err();
        assert!(matches!(&outside, NoGroups::Outside(group) if group == "/elsewhere"), "{outside}");
        let above = own_group("0::/../neighbour\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
        assert!(matches!(above, Err(NoGroups::Outside(_))), "{above:?}");
    }

    #[test]
    fn without_version_2_it_is_said_how_to_get_it() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let told = own_group("4:memory:/\n", mounts).unwrap_err().to_string();
        assert!(told.contains("unified_cgroup_hierarchy"), "{told}");
    }
}
