//! Where the output of tasks goes: as little of an object store as an agent needs, so that another machine's can be
//! reached through any replica.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tenure_logs::Part;
use tenure_model::AttemptId;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[async_trait]
pub trait LogStore: fmt::Debug + Send + Sync {
    /// Putting a part again is harmless. `prefix` is the folder of the try.
    async fn put_part(&self, prefix: &Path, part: Part, text: Bytes) -> Result<(), BoxError>;

    /// Up to where the output of this attempt is stored already.
    async fn stored_until(&self, prefix: &Path, attempt: AttemptId) -> Result<u64, BoxError>;
}

#[async_trait]
impl<S: ObjectStore> LogStore for S {
    async fn put_part(&self, prefix: &Path, part: Part, text: Bytes) -> Result<(), BoxError> {
        self.put(&part.path(prefix), text.into()).await?;
        Ok(())
    }

    async fn stored_until(&self, prefix: &Path, attempt: AttemptId) -> Result<u64, BoxError> {
        Ok(tenure_logs::stored_until(self, prefix, attempt).await?)
    }
}
