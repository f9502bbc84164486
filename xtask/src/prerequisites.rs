//! What the tests need besides Rust, and how a bare Debian machine gets it.
//!
//! Nothing is installed without saying so, and nothing at all by a user who is not root: then the message
//! holds the command to type.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

/// A program the tests start, and the Debian package that brings it.
struct Need {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

const NEEDS: [Need; 6] = [
    Need {
        program: "initdb",
        package: "postgresql",
        why: "the Postgres store is tested against a real server",
    },
    Need { program: "etcd", package: "etcd-server", why: "leases are tested in a real etcd" },
    Need { program: "etcdctl", package: "etcd-client", why: "tests meddle with etcd as an operator would" },
    Need {
        program: "pgbouncer",
        package: "pgbouncer",
        why: "crash hints must find out a real pooler that shares sessions",
    },
    Need { program: "valgrind", package: "valgrind", why: "instructions are counted to notice regressions" },
    Need { program: "python3", package: "python3", why: "python tasks are run for real" },
];

/// Unit tests (`quick`) need the toolchain alone.
pub fn ensure(quick: bool) -> anyhow::Result<()> {
    toolchain_component("rustfmt", "fmt")?;
    toolchain_component("clippy", "clippy")?;
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !is_installed(need.program)).collect();
    if quick || missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        println!("missing: {} ({})", need.program, need.why);
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    install(&packages)
}

fn install(packages: &[&str]) -> anyhow::Result<()> {
    let by_hand = format!("apt-get install --yes {}", packages.join(" "));
    anyhow::ensure!(
        in_path("apt-get"),
        "please install {} with your package manager",
        packages.join(" and ")
    );
    anyhow::ensure!(
        is_root()?,
        "please install them: sudo {by_hand}\n(or leave them out: cargo xtask test --quick)"
    );
    println!("installing them: {by_hand}");
    apt_get(&["update", "--quiet"])?;
    let mut arguments = vec!["install", "--yes", "--quiet", "--no-install-recommends"];
    arguments.extend(packages);
    apt_get(&arguments)
}

fn apt_get(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
    let status = status.context("apt-get could not be started")?;
    anyhow::ensure!(status.success(), "apt-get {} failed ({status})", arguments.join(" "));
    Ok(())
}

/// A minimal Rust toolchain comes without these two.
fn toolchain_component(component: &str, subcommand: &str) -> anyhow::Result<()> {
    let probe = crate::cargo(&[subcommand, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if probe.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    println!("missing: cargo {subcommand}; installing it: rustup component add {component}");
    let status =
        Command::new("rustup").args(["component", "add", component]).current_dir(crate::root()).status();
    let status =
        status.with_context(|| format!("rustup is not there; please install {component} by hand"))?;
    anyhow::ensure!(status.success(), "rustup component add {component} failed ({status})");
    Ok(())
}

fn is_installed(program: &str) -> bool {
    // Debian leaves /usr/sbin out of a plain user's PATH.
    let for_admins = Path::new("/usr/sbin").join(program).is_file();
    in_path(program)
        || for_admins
        || debian_postgres_folders().iter().any(|folder| folder.join(program).is_file())
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Debian keeps the server's programs out of the PATH, one folder for each version.
fn debian_postgres_folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir(Path::new("/usr/lib/postgresql")).into_iter().flatten();
    versions.flatten().map(|version| version.path().join("bin")).collect()
}

fn is_root() -> anyhow::Result<bool> {
    let answer = Command::new("id").arg("-u").output().context("id -u could not be started")?;
    Ok(answer.stdout.trim_ascii() == b"0")
}
