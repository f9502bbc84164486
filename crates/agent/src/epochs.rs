//! The highest epoch this agent has seen for each scope, kept on disk: a deposed owner cannot start work
//! here, not even right after the agent has restarted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tenure_agent_life::{Admission, EpochMemory, Highest};

#[derive(Debug)]
pub(crate) struct Epochs {
    path: PathBuf,
    highest: Highest,
}

impl Epochs {
    /// A file that cannot be read is an error: going on without it would forget who was deposed.
    pub fn load(path: PathBuf) -> io::Result<Self> {
        let highest = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { path, highest: Highest(highest) })
    }
}

impl EpochMemory for Epochs {
    /// Writes only when an epoch grows, which is once per term of an owner.
    fn admit(&mut self, scope: &str, epoch: u64) -> io::Result<Result<(), u64>> {
        match self.highest.admit(scope, epoch) {
            Admission::Known => Ok(Ok(())),
            Admission::Stale(highest) => Ok(Err(highest)),
            Admission::Newer(grown) => {
                replace_durably(&self.path, &serde_json::to_vec_pretty(&grown.0)?)?;
                self.highest = grown;
                Ok(Ok(()))
            }
        }
    }
}

fn replace_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("json.new");
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(path.parent().expect("the file lies in the data folder"))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_epoch_is_refused_per_scope_and_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("epochs.json");
        let mut epochs = Epochs::load(path.clone()).unwrap();
        assert_eq!(epochs.admit("a", 5).unwrap(), Ok(()));
        assert_eq!(epochs.admit("a", 5).unwrap(), Ok(()));
        assert_eq!(epochs.admit("a", 4).unwrap(), Err(5));
        assert_eq!(epochs.admit("b", 1).unwrap(), Ok(()));
        let mut reloaded = Epochs::load(path).unwrap();
        assert_eq!(reloaded.admit("a", 4).unwrap(), Err(5));
        assert_eq!(reloaded.admit("a", 6).unwrap(), Ok(()));
    }

    #[test]
    fn a_damaged_file_is_an_error_not_a_fresh_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("epochs.json");
        fs::write(&path, "{").unwrap();
        assert!(Epochs::load(path).is_err());
    }
}
