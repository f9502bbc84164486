//! Settings as they may be shown: without what opens a door.

/// A setting's value without its secrets.
pub fn masked(key: &str, text: &str) -> String {
    if key == "signals_webhook" {
        return without_secrets(text);
    }
    let hides = ["database_url", "leases"].contains(&key);
    let Some((scheme, rest)) = text.split_once("://").filter(|_| hides) else {
        // Something else than a URL: whatever it is, it may hold a password.
        return if key == "database_url" { "***".into() } else { text.to_owned() };
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) if query.contains("password") => (rest, "?***".to_owned()),
        Some((rest, query)) => (rest, format!("?{query}")),
        None => (rest, String::new()),
    };
    // The last @: a password may hold one.
    let rest = match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{name}:***@{host}"),
            None => format!("{user}@{host}"),
        },
        None => rest.to_owned(),
    };
    format!("{scheme}://{rest}{query}")
}

/// Where a webhook is, and nothing of how it is opened: whoever knows the path of many may write to them.
pub fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "***".into() };
    let (authority, path) = match rest.find(['/', '?', '#']) {
        Some(end) => (&rest[..end], rest[end..].trim_start_matches('/')),
        None => (rest, ""),
    };
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let hidden = if path.is_empty() && host == authority { "" } else { "/***" };
    format!("{scheme}://{host}{hidden}")
}
