//! The dashboard's files, as they stand in `dashboard/`. They hold nothing that is secret and are served to whoever can reach the port; what they show comes from the
//! other routes, and those ask who is there.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use std::sync::LazyLock;

/// Nothing but our own files and calls: no inline script or style, nothing from elsewhere, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct File {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal $kind:literal)*) => {
        &[$(File { name: $name, kind: $kind, bytes: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboard/", $name)) }),*]
    };
}

const FILES: &[File] = files! {
    "index.html" "text/html; charset=utf-8"
    "style.css" "text/css; charset=utf-8"
    "icon.svg" "image/svg+xml"
    "main.js" "text/javascript; charset=utf-8"
    "connections.js" "text/javascript; charset=utf-8"
    "controls.js" "text/javascript; charset=utf-8"
    "events.js" "text/javascript; charset=utf-8"
    "fabric.js" "text/javascript; charset=utf-8"
    "html.js" "text/javascript; charset=utf-8"
    "link.js" "text/javascript; charset=utf-8"
    "moves.js" "text/javascript; charset=utf-8"
    "node.js" "text/javascript; charset=utf-8"
    "tenants.js" "text/javascript; charset=utf-8"
    "timeline.js" "text/javascript; charset=utf-8"
    "topology.js" "text/javascript; charset=utf-8"
    "units.js" "text/javascript; charset=utf-8"
};

/// Entity tags, in the order of [`FILES`].
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| {
    let tag = |file: &File| {
        let text = format!("\"{:08x}-{:x}\"", crc32fast::hash(file.bytes), file.bytes.len());
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
    };
    FILES.iter().map(tag).collect()
});

/// `/dashboard/…`, and `/`, which leads there.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let there = || async { Redirect::temporary("/dashboard/") };
    Router::new()
        .route("/", get(there))
        .route("/dashboard", get(there))
        .route("/dashboard/", get(|headers: HeaderMap| async move { answer("index.html", &headers) }))
        .route(
            "/dashboard/{file}",
            get(|Path(name): Path<String>, headers: HeaderMap| async move { answer(&name, &headers) }),
        )
}

fn answer(name: &str, asked: &HeaderMap) -> Response {
    let Some(at) = FILES.iter().position(|file| file.name == name) else {
        return super::Failure::not_found("the dashboard has no such file").into_response();
    };
    let (file, tag) = (&FILES[at], &TAGS[at]);
    let known = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut known = known.flat_map(|list| list.split(',')).map(|tag| tag.trim().trim_start_matches("W/"));
    let mut response = if known.any(|known| known.as_bytes() == tag.as_bytes() || known == "*") {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, HeaderValue::from_static(file.kind))], file.bytes).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag.clone());
    // Asked for each time, answered by the tag: a new version is never mixed with an old one.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> &'static str {
        std::str::from_utf8(FILES[0].bytes).expect("text")
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboard");
        let mut there: Vec<String> = std::fs::read_dir(folder)
            .expect("the folder")
            .map(|entry| entry.expect("a file").file_name().into_string().expect("a name"))
            .collect();
        there.sort();
        let mut served: Vec<&str> = FILES.iter().map(|file| file.name).collect();
        served.sort_unstable();
        assert_eq!(there, served);
    }

    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        let page = index();
        let handler = page.split_whitespace().find(|word| word.starts_with("on") && word.contains('='));
        assert!(!page.contains(" style=") && !page.contains("<style") && handler.is_none(), "inline");
        assert_eq!(page.matches("<script").count(), page.matches("<script type=\"module\" src=\"main.js\">").count());
        for file in FILES {
            let text = std::str::from_utf8(file.bytes).expect("text");
            // A name space is no address that is asked, and a hint for people names none.
            let text = text.replace("http://www.w3.org/2000/svg", "").replace("--control http://…", "");
            for outside in ["https://", "http://", "@import", "eval(", "innerHTML", "document.write"] {
                assert!(!text.contains(outside), "{}: {outside}", file.name);
            }
        }
    }

    #[test]
    fn a_file_that_is_known_is_not_sent_again() {
        let first = answer("style.css", &HeaderMap::new());
        let tag = first.headers()[header::ETAG].clone();
        let mut asked = HeaderMap::new();
        asked.insert(header::IF_NONE_MATCH, tag);
        assert_eq!(answer("style.css", &asked).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer("main.js", &asked).status(), StatusCode::OK);
        assert_eq!(answer("../Cargo.toml", &asked).status(), StatusCode::NOT_FOUND);
    }
}
