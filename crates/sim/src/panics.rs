//! Panics that somebody has survived. The control plane is built to outlive them; here each is a defect all the same.

use std::cell::RefCell;
use std::panic::PanicHookInfo;
use std::sync::Once;

thread_local! {
    // A world lives on one thread, and so do its panics. `None`: there is no world on this one.
    static SEEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// From here on panics of this thread are kept instead of printed.
pub fn begin() {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !keep(panic) {
                before(panic);
            }
        }));
    });
    SEEN.set(Some(vec![]));
}

/// Those that there were; from here on they are printed again.
pub fn end() -> Vec<String> {
    SEEN.take().unwrap_or_default()
}

fn keep(panic: &PanicHookInfo<'_>) -> bool {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let what = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    SEEN.with_borrow_mut(|seen| {
        if let Some(seen) = seen {
            seen.push(format!("{what} ({place})"));
        }
        seen.is_some()
    })
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    #[test]
    fn what_panics_in_a_world_is_kept_and_what_panics_after_it_is_not() {
        super::begin();
        assert!(catch_unwind(|| panic!("in a world")).is_err());
        let kept = super::end();
        assert!(kept.len() == 1 && kept[0].starts_with("in a world ("), "{kept:?}");
        assert!(catch_unwind(|| panic!("printed: that is as it should be")).is_err());
        assert!(super::end().is_empty());
    }
}
