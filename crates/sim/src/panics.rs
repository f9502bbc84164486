//! Panics that somebody has survived. The control plane is built to outlive them; here each is a defect all the same.

use std::cell::RefCell;
use std::panic::PanicHookInfo;
use std::sync::Once;

thread_local! {
    // A world lives on one thread, and so do its panics.
    static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

static HOOK: Once = Once::new();

/// From here on panics of this thread are kept instead of printed.
pub fn begin() {
    HOOK.call_once(|| std::panic::set_hook(Box::new(keep)));
    SEEN.take();
}

pub fn since_begun() -> Vec<String> {
    SEEN.take()
}

fn keep(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let what = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    SEEN.with_borrow_mut(|seen| seen.push(format!("{what} ({place})")));
}
