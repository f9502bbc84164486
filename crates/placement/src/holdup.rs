//! What keeps a task that is ready from running, in the words that people read: the owner of its shard and whoever
//! looks at the database alone say the same.

use std::fmt;

use tenure_model::{PoolName, Resources, TaskId, TenantId};

use crate::Unplaceable;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holdup {
    /// The dag is paused.
    Paused,
    /// `max_active_tasks` of the run.
    Run {
        most: Option<u32>,
    },
    /// `max_active_per_dag` of the task.
    TaskInDag {
        task: TaskId,
    },
    /// `max_active_per_run` of the task.
    TaskInRun {
        task: TaskId,
    },
    PoolFull {
        pool: PoolName,
        slots: u32,
    },
    PoolTooSmall {
        pool: PoolName,
        slots: u32,
        asked: u32,
    },
    NoPool {
        pool: PoolName,
    },
    /// The tenant's quota has too little left of a resource.
    Quota {
        tenant: TenantId,
        resource: String,
        /// Of all that the tenant may take, in thousandths.
        most: u64,
        asked: u64,
    },
    Nowhere(Unplaceable),
}

impl Holdup {
    /// A task that asks for `asked` slots of a pool does not get them. `slots`: what the pool has, if it exists.
    pub fn pool(pool: PoolName, slots: Option<u32>, asked: u32) -> Self {
        match slots {
            None => Self::NoPool { pool },
            Some(slots) if asked > slots => Self::PoolTooSmall { pool, slots, asked },
            Some(slots) => Self::PoolFull { pool, slots },
        }
    }

    /// What is in the way of a request whose tenant takes `used` of the `most` that it may. `None`: nothing.
    pub fn quota(tenant: &TenantId, most: &Resources, used: &Resources, asked: &Resources) -> Option<Self> {
        let over = |(resource, most): (&String, &u64)| {
            let asked = asked.get(resource);
            let too_much = asked > 0 && used.get(resource).saturating_add(asked) > *most;
            too_much.then(|| Self::Quota {
                tenant: tenant.clone(),
                resource: resource.clone(),
                most: *most,
                asked,
            })
        };
        most.0.iter().find_map(over)
    }
}

impl fmt::Display for Holdup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("its dag is paused"),
            Self::Run { most: Some(most) } => write!(f, "its run has max_active_tasks ({most}) running"),
            Self::Run { most: None } => f.write_str("its run has max_active_tasks running"),
            Self::TaskInDag { task } => write!(f, "task {task} has max_active_per_dag running"),
            Self::TaskInRun { task } => write!(f, "task {task} has max_active_per_run running"),
            Self::PoolFull { pool, slots } => write!(f, "pool {pool} is full ({slots} slots)"),
            Self::PoolTooSmall { pool, slots, asked } => {
                write!(f, "pool {pool} has {slots} slots, and it asks for {asked}")
            }
            Self::NoPool { pool } => {
                write!(f, "pool {pool} does not exist: create it with \"tenure pool set {pool} SLOTS\"")
            }
            Self::Quota { tenant, resource, most, asked } => {
                let (shown, wanted) = (Resources::shown(resource, *most), Resources::shown(resource, *asked));
                match asked > most {
                    true => {
                        write!(f, "tenant {tenant} may take {shown} {resource}, and it asks for {wanted}")
                    }
                    false => write!(f, "tenant {tenant} takes all it may ({shown} {resource})"),
                }
            }
            Self::Nowhere(unplaceable) => unplaceable.fmt(f),
        }
    }
}
