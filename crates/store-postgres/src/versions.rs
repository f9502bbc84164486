//! Dag versions: read once, kept by the hash of their content, many at a time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use deadpool_postgres::Pool;
use tenure_model::{DagSpec, VersionHash};
use tenure_store::{BoxError, DagVersion, DagVersionName, SpecCache, StoreError};

use crate::rows;
use crate::session::Session;

const HASHES: &str = "SELECT c.position, v.hash
    FROM unnest($1::text[], $2::text[], $3::integer[]) WITH ORDINALITY AS c(tenant, dag_id, version, position)
    JOIN dag_versions v ON v.tenant = c.tenant AND v.dag_id = c.dag_id AND v.version = c.version";
const SPECS: &str = "SELECT c.position, v.spec
    FROM unnest($1::text[], $2::text[], $3::integer[]) WITH ORDINALITY AS c(tenant, dag_id, version, position)
    JOIN dag_versions v ON v.tenant = c.tenant AND v.dag_id = c.dag_id AND v.version = c.version";
const IN_FORCE: &str = "SELECT tenant, dag_id, version FROM dags ORDER BY tenant, dag_id";

const DOING: &str = "reading dag versions";
/// Specs read in one go while nobody waits for them.
const AHEAD: usize = 500;

pub(crate) async fn load(
    pool: &Pool,
    cache: &SpecCache,
    wanted: &[DagVersionName],
) -> Result<Vec<Result<DagVersion, StoreError>>, StoreError> {
    let hashes = hashes(pool, wanted).await?;
    // Held from here on: what is remembered below may displace it.
    let known: HashMap<usize, Arc<DagSpec>> =
        hashes.iter().filter_map(|(position, hash)| Some((*position, cache.get(hash)?))).collect();
    let missing: Vec<usize> =
        hashes.keys().copied().filter(|position| !known.contains_key(position)).collect();
    let mut specs = specs(pool, wanted, &missing).await?;
    let version = |(position, name): (usize, &DagVersionName)| {
        let DagVersionName { tenant, dag, version } = name.clone();
        let Some(hash) = hashes.get(&position) else {
            return Err(StoreError::NotFound(format!("dag {dag} has no version {version}")));
        };
        let spec = match specs.remove(&position) {
            Some(Ok(spec)) => cache.remember(hash.clone(), spec),
            Some(Err(source)) => {
                let what = format!("version {version} of dag {dag}");
                return Err(StoreError::Corrupt { what, source });
            }
            None => known.get(&position).cloned().ok_or_else(|| {
                StoreError::Conflict(format!("version {version} of dag {dag} was deleted meanwhile"))
            })?,
        };
        Ok(DagVersion { tenant, dag, version, spec })
    };
    Ok(wanted.iter().enumerate().map(version).collect())
}

pub(crate) async fn read_ahead(pool: &Pool, cache: &SpecCache) -> Result<usize, StoreError> {
    let rows = Session::once(pool, DOING, IN_FORCE, &[]).await?;
    let in_force = rows::all(&rows, |cells| {
        Ok(DagVersionName { tenant: cells.text()?, dag: cells.text()?, version: cells.number()? })
    })?;
    cache.begin_round();
    let mut read = 0;
    for names in in_force.chunks(AHEAD) {
        let hashes = hashes(pool, names).await?;
        let missing: Vec<usize> = hashes
            .iter()
            .filter(|(_, hash)| cache.get(hash).is_none())
            .map(|(position, _)| *position)
            .collect();
        for (position, spec) in specs(pool, names, &missing).await? {
            // One that makes no sense is told to whoever needs it.
            if let Ok(spec) = spec {
                if !cache.remember_ahead(hashes[&position].clone(), &spec) {
                    return Ok(read);
                }
                read += 1;
            }
        }
    }
    Ok(read)
}

/// By position in `wanted`; those that do not exist are left out.
async fn hashes(pool: &Pool, wanted: &[DagVersionName]) -> Result<BTreeMap<usize, VersionHash>, StoreError> {
    let (tenants, dags, versions) = columns(wanted.iter());
    let rows = Session::once(pool, DOING, HASHES, &[&tenants, &dags, &versions]).await?;
    let hashes = rows::all(&rows, |cells| {
        let position = cells.take::<i64>()? as usize - 1;
        Ok((position, VersionHash::from_hex(cells.text::<String>()?)))
    })?;
    Ok(hashes.into_iter().collect())
}

type Specs = HashMap<usize, Result<Arc<DagSpec>, BoxError>>;

/// The specs at these positions of `wanted`.
async fn specs(pool: &Pool, wanted: &[DagVersionName], positions: &[usize]) -> Result<Specs, StoreError> {
    if positions.is_empty() {
        return Ok(Specs::new());
    }
    let (tenants, dags, versions) = columns(positions.iter().map(|position| &wanted[*position]));
    let rows = Session::once(pool, DOING, SPECS, &[&tenants, &dags, &versions]).await?;
    let texts = rows::all(&rows, |cells| Ok((cells.take::<i64>()? as usize - 1, cells.text::<String>()?)))?;
    let parsed = |(asked, text): (usize, String)| {
        let spec = serde_json::from_str(&text).map(Arc::new).map_err(BoxError::from);
        (positions[asked], spec)
    };
    Ok(texts.into_iter().map(parsed).collect())
}

fn columns<'a>(
    names: impl Iterator<Item = &'a DagVersionName> + Clone,
) -> (Vec<&'a str>, Vec<&'a str>, Vec<i32>) {
    (
        names.clone().map(|name| name.tenant.as_str()).collect(),
        names.clone().map(|name| name.dag.as_str()).collect(),
        names.map(|name| name.version as i32).collect(),
    )
}
