//! Calls to control over HTTP: JSON in, JSON out, and sentences for what can go wrong. It keeps nothing but the connection.

use crate::failure::{During, Failure};
use scalefabric_fabric::exchange::explain_refusal;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// How long an answer may take: long enough for a machine that is very busy.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest answer, bytes: 8,192 ports are some 2 MB.
const LONGEST: u64 = 64 * 1024 * 1024;

/// Control at an address.
pub struct Control {
    agent: ureq::Agent,
    address: String,
    token: Option<String>,
}

impl Control {
    /// At `http://…` or `https://…`; `ca` signs its certificate.
    pub fn new(address: &str, token: Option<String>, ca: Option<&Path>) -> Result<Self, Failure> {
        let address = address.trim_end_matches('/');
        if !address.starts_with("http://") && !address.starts_with("https://") {
            return Err(Failure::usage(format!(
                "--control {address}: write `http://host:port`, or `https://…` off this host"
            )));
        }
        if token.as_ref().is_some_and(|token| token.chars().any(|character| !character.is_ascii_graphic())) {
            return Err(Failure::usage(
                "the token has characters that no token has: give the text of control's token_file",
            ));
        }
        let mut tls = TlsConfig::builder();
        if let Some(path) = ca {
            let wrong = |why: &dyn std::fmt::Display| Failure::usage(format!("--ca {}: {why}", path.display()));
            let text = std::fs::read(path).map_err(|error| wrong(&error))?;
            let mut roots: Vec<Certificate<'static>> = Vec::new();
            for item in parse_pem(&text) {
                if let PemItem::Certificate(certificate) = item.map_err(|error| wrong(&error))? {
                    roots.push(certificate);
                }
            }
            if roots.is_empty() {
                return Err(wrong(&"it holds no certificate in PEM"));
            }
            tls = tls.root_certs(RootCerts::new_with_certs(&roots));
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .tls_config(tls.build())
            .build();
        Ok(Self { agent: config.into(), address: address.to_owned(), token })
    }

    /// What a path has.
    pub fn get(&self, path: &str) -> Result<Value, Failure> {
        self.tagged(path).map(|(value, _)| value)
    }

    /// The same, in a form of ours.
    pub fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let value = self.get(path)?;
        serde_json::from_value(value).during(|| format!("{path} tells what this version cannot read"))
    }

    /// What a path has, and the tag that names it.
    pub fn tagged(&self, path: &str) -> Result<(Value, Option<String>), Failure> {
        let mut request = self.agent.get(format!("{}{path}", self.address));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        self.answer(request.call())
    }

    /// Puts a value, if what is there is still what the tag names.
    pub fn put(&self, path: &str, tag: Option<&str>, value: &Value) -> Result<(), Failure> {
        let mut request = self.agent.put(format!("{}{path}", self.address)).header("Content-Type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(tag) = tag {
            request = request.header("If-Match", tag);
        }
        self.answer(request.send(value.to_string())).map(drop)
    }

    fn answer(
        &self,
        outcome: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<(Value, Option<String>), Failure> {
        let address = &self.address;
        let mut response = outcome.map_err(|error| {
            if let Some(refusal) = explain_refusal(&format!("control at {address}"), &error) {
                return Failure::failed(format!("{refusal}; --ca FILE names who signed control's certificate"));
            }
            Failure::failed(format!(
                "control does not answer at {address}: {error}; does `sfab control` run there? --control names another place"
            ))
        })?;
        let status = response.status().as_u16();
        let tag = response.headers().get("etag").and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let text = response.body_mut().with_config().limit(LONGEST).read_to_string();
        let text = text.during(|| format!("control at {address} broke off"))?;
        if status == 401 {
            return Err(Failure::failed(format!(
                "control at {address} asks for its token, or does not take this one: give it in SCALEFABRIC_TOKEN or by --token"
            )));
        }
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        if !(200..300).contains(&status) || value.is_null() {
            let detail = value["detail"].as_str().unwrap_or("is that the HTTP address of a control of this version?");
            return Err(Failure::failed(format!("control at {address} answered {status}: {detail}")));
        }
        Ok((value, tag))
    }
}
