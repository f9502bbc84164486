//! Where peers are installed, each in a folder of its own, and how: with the ordinary client of each registry.
//!
//! What a folder was made from is kept in it. A run that wants the same finds it; one that wants something else begins anew.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::process;

/// For one command. Compiling a hundred crates takes a small machine ten minutes.
const WITHIN: Duration = Duration::from_secs(20 * 60);
/// Written last, so that what was interrupted is not taken for whole.
const STAMP: &str = "made-from";

pub struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    pub fn open(folder: Option<PathBuf>) -> Result<Self> {
        let folder = folder.unwrap_or_else(|| std::env::temp_dir().join("tenure-bench-peers"));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let folder = folder.canonicalize()?;
        eprintln!("peers are installed in {}", folder.display());
        Ok(Self { folder })
    }

    /// A virtual environment of Python with these packages.
    pub fn python(&self, name: &str, packages: &[&str]) -> Result<PathBuf> {
        self.made(name, &packages.join("\n"), |folder| {
            let venv = folder.join("venv");
            let mut create = Command::new("python3");
            create.args(["-m", "venv"]).arg(&venv);
            run("python3 -m venv", &create, folder)?;
            let mut install = Command::new(venv.join("bin/pip"));
            install.args(["install", "--quiet", "--disable-pip-version-check"]).args(packages);
            run("pip install", &install, folder)
        })
    }

    /// A package of npm, and the script that uses it.
    pub fn node(&self, name: &str, package: &str, script: &str) -> Result<PathBuf> {
        self.made(name, &format!("{package}\n{script}"), |folder| {
            std::fs::write(folder.join("package.json"), r#"{ "private": true, "type": "module" }"#)?;
            std::fs::write(folder.join("worker.mjs"), script)?;
            let mut install = Command::new("npm");
            install.args(["install", "--no-audit", "--no-fund", package]).current_dir(folder);
            run("npm install", &install, folder)
        })
    }

    /// A program of one file, built with cargo.
    pub fn rust(&self, name: &str, manifest: &str, main: &str) -> Result<PathBuf> {
        self.made(name, &format!("{manifest}\n{main}"), |folder| {
            std::fs::create_dir(folder.join("src"))?;
            std::fs::write(folder.join("Cargo.toml"), manifest)?;
            std::fs::write(folder.join("src/main.rs"), main)?;
            let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            build.args(["build", "--release"]).current_dir(folder);
            build.env("CARGO_TARGET_DIR", folder.join("target"));
            run("cargo build", &build, folder)
        })
    }

    fn made(&self, name: &str, from: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        let stamp = folder.join(STAMP);
        if std::fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == from) {
            return Ok(folder);
        }
        eprintln!("installing {name}");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        std::fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        make(&folder)?;
        std::fs::write(stamp, from)?;
        Ok(folder)
    }
}

fn run(what: &str, command: &Command, folder: &Path) -> Result<()> {
    process::run(what, command, &folder.join("install.log"), WITHIN)
}

#[cfg(test)]
mod tests {
    //! Goal: nothing is installed twice, and nothing half installed is used.

    use anyhow::bail;

    use super::*;

    #[test]
    fn what_is_there_is_not_made_again_unless_it_is_made_from_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch { folder: folder.path().to_owned() };
        let mut made = 0;
        for from in ["a 1", "a 1", "a 2", "a 2"] {
            scratch
                .made("a", from, |_| {
                    made += 1;
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(made, 2);
    }

    #[test]
    fn what_failed_half_way_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch { folder: folder.path().to_owned() };
        let failed = scratch.made("a", "a 1", |folder| {
            std::fs::write(folder.join("half"), "")?;
            bail!("the registry is away")
        });
        assert!(failed.is_err());
        let whole = scratch.made("a", "a 1", |folder| Ok(std::fs::write(folder.join("whole"), "")?)).unwrap();
        assert!(whole.join("whole").exists() && !whole.join("half").exists());
    }
}
