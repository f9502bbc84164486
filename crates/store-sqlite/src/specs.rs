//! Dag specs, parsed once. The key is the hash of the content, so an entry cannot go stale.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, OptionalExtension};
use tenure_model::{DagId, DagSpec, TenantId, VersionHash};

use crate::errors::Fail;

/// About 1 kB each, so this many cost about 200 MB at the very most.
const MOST_TASKS: usize = 200_000;

#[derive(Debug, Default)]
pub(crate) struct Specs {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    specs: HashMap<VersionHash, Arc<DagSpec>>,
    tasks: usize,
}

impl Specs {
    /// Reads the version's row only if its content is not known.
    pub(crate) fn load(
        &self,
        conn: &Connection,
        tenant: &TenantId,
        dag: &DagId,
        version: u32,
        hash: &VersionHash,
    ) -> Result<Arc<DagSpec>, Fail> {
        if let Some(spec) = self.get(hash) {
            return Ok(spec);
        }
        let mut select = conn.prepare_cached(
            "SELECT spec FROM dag_versions WHERE tenant = ?1 AND dag_id = ?2 AND version = ?3",
        )?;
        let text: Option<String> =
            select.query_row((tenant.as_str(), dag.as_str(), version), |row| row.get(0)).optional()?;
        let text = text.ok_or_else(|| no_version(dag, version))?;
        let spec: DagSpec = serde_json::from_str(&text)
            .map_err(|error| Fail::corrupt(format!("version {version} of dag {dag}"), error))?;
        Ok(self.remember(hash.clone(), Arc::new(spec)))
    }

    pub(crate) fn remember(&self, hash: VersionHash, spec: Arc<DagSpec>) -> Arc<DagSpec> {
        let mut known = self.known.lock().expect("nothing panics under this lock");
        if known.tasks + spec.tasks.len() > MOST_TASKS {
            *known = Known::default();
        }
        if known.specs.insert(hash, Arc::clone(&spec)).is_none() {
            known.tasks += spec.tasks.len() + 1;
        }
        spec
    }

    fn get(&self, hash: &VersionHash) -> Option<Arc<DagSpec>> {
        self.known.lock().expect("nothing panics under this lock").specs.get(hash).cloned()
    }
}

pub(crate) fn no_version(dag: &DagId, version: u32) -> Fail {
    Fail::not_found(format!("dag {dag} has no version {version}"))
}
