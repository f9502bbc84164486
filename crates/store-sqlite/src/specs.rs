//! Dag specs as rows and in memory.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};
use tenure_model::{DagId, DagSpec, TenantId, VersionHash};
use tenure_store::SpecCache;

use crate::errors::Fail;

#[derive(Debug, Default)]
pub(crate) struct Specs {
    known: SpecCache,
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
        if let Some(spec) = self.known.get(hash) {
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
        self.known.remember(hash, spec)
    }
}

pub(crate) fn no_version(dag: &DagId, version: u32) -> Fail {
    Fail::not_found(format!("dag {dag} has no version {version}"))
}
