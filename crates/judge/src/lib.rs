//! Holds what happened against what was promised.
//!
//! [`history`] is what is left of a run, of real processes or of simulated ones; [`checker`] holds it against the
//! promises P1 to P9 of the design and those beside them, and [`mutations`] break a good history in every way the checker claims to notice: a
//! checker that lets one of them pass proves nothing. Nothing here knows a type of what it judges.

pub mod checker;
pub mod history;
pub mod mutations;
