//! Dag specs, parsed once. The key is the hash of the content, so an entry cannot go stale.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tenure_model::{DagSpec, VersionHash};

/// About 1 kB each, so this many cost about 200 MB at the very most.
const MOST_TASKS: usize = 200_000;

#[derive(Debug, Default)]
pub struct SpecCache {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    specs: HashMap<VersionHash, Arc<DagSpec>>,
    tasks: usize,
}

impl SpecCache {
    pub fn get(&self, hash: &VersionHash) -> Option<Arc<DagSpec>> {
        self.known.lock().expect("nothing panics under this lock").specs.get(hash).cloned()
    }

    pub fn remember(&self, hash: VersionHash, spec: Arc<DagSpec>) -> Arc<DagSpec> {
        let mut known = self.known.lock().expect("nothing panics under this lock");
        if known.tasks + spec.tasks.len() > MOST_TASKS {
            *known = Known::default();
        }
        if known.specs.insert(hash, Arc::clone(&spec)).is_none() {
            known.tasks += spec.tasks.len() + 1;
        }
        spec
    }
}
