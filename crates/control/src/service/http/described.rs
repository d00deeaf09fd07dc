//! What is true of all calls and so is not written at each: how callers show who they are, that a stranger is refused, and that a failure is a problem (RFC 9457). It changes the
//! document only.

use utoipa::Modify;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, Content, OpenApi, Ref, RefOr, ResponseBuilder};

/// How failures are written.
const PROBLEM: &str = "application/problem+json";
/// Name of the scheme of tokens.
const TOKEN: &str = "token";
/// That of certificates.
const CERTIFICATE: &str = "certificate";

/// Adds it.
pub struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
            "The text of control's `token_file`. Off loopback it, or a client's certificate, is needed; on loopback only if control has a token.",
        ));
        let components = document.components.get_or_insert_with(Components::new);
        components.add_security_scheme(TOKEN, SecurityScheme::Http(scheme.build()));
        let certificate = "A certificate that control's `client_ca` has signed.".to_owned();
        let scheme = SecurityScheme::MutualTls { description: Some(certificate), deprecated: None, extensions: None };
        components.add_security_scheme(CERTIFICATE, scheme);
        // Either, or on loopback nothing.
        let none: [&str; 0] = [];
        let either = [TOKEN, CERTIFICATE].map(|name| SecurityRequirement::new(name, none));
        document.security = Some(either.into_iter().chain([SecurityRequirement::default()]).collect());
        for item in document.paths.paths.values_mut() {
            let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
            operations.into_iter().flatten().for_each(describe);
        }
    }
}

fn describe(operation: &mut Operation) {
    let refusals = [
        ("401", "Off loopback, or where control has a token: neither token nor certificate was shown"),
        ("403", "On loopback without a token: not by this host's own name, or from a page of somebody else"),
    ];
    let wrong = ("400", "A parameter or the body is wrong: `detail` says which, and what to do");
    let takes = operation.parameters.as_ref().is_some_and(|all| !all.is_empty()) || operation.request_body.is_some();
    let too_long = [("413", "The body is longer than 256 KiB"), ("415", "The body is said to be no JSON")];
    let bodies = operation.request_body.as_ref().map(|_| too_long).into_iter().flatten();
    let all = &mut operation.responses.responses;
    for (status, text) in refusals.into_iter().chain(takes.then_some(wrong)).chain(bodies) {
        all.entry(status.into()).or_insert_with(|| {
            let content = Content::new(Some(Ref::from_schema_name("Failure")));
            RefOr::T(ResponseBuilder::new().description(text).content(PROBLEM, content).build())
        });
    }
    for (status, response) in all {
        if let RefOr::T(response) = response
            && status.starts_with(['4', '5'])
            && let Some(content) = response.content.shift_remove("application/json")
        {
            response.content.insert(PROBLEM.into(), content);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::service::http::{CALLS, document};
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// The document as who reads it sees it.
    fn published() -> Value {
        serde_json::to_value(document()).expect("JSON")
    }

    fn operations(document: &Value) -> Vec<(String, String, &Value)> {
        let mut all = Vec::new();
        for (path, item) in document["paths"].as_object().expect("paths") {
            for (method, one) in item.as_object().expect("an item") {
                all.push((method.clone(), path.clone(), one));
            }
        }
        all
    }

    #[test]
    fn the_document_has_every_call_and_no_other() {
        let document = published();
        let described: BTreeSet<(String, String)> =
            operations(&document).into_iter().map(|(method, path, _)| (method, path)).collect();
        let served: BTreeSet<(String, String)> =
            CALLS.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())).collect();
        assert_eq!(described, served);
    }

    #[test]
    fn every_call_is_described_with_its_parameters_and_its_failures() {
        let document = published();
        for (method, path, one) in operations(&document) {
            let what = format!("{method} {path}");
            let said =
                ["summary", "description"].iter().any(|key| one[key].as_str().is_some_and(|text| !text.is_empty()));
            assert!(said, "{what}: no description");
            let parameters = one["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
            for parameter in parameters {
                let described = parameter["description"].as_str().is_some_and(|text| !text.is_empty());
                assert!(described, "{what}: {parameter}");
            }
            for name in path.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
                assert!(parameters.iter().any(|one| one["in"] == "path" && one["name"] == name), "{what}: {name}");
            }
            let responses = one["responses"].as_object().expect("responses");
            assert!(responses.contains_key("401") && responses.contains_key("403"), "{what}");
            let takes = !parameters.is_empty() || one["requestBody"].is_object();
            assert_eq!(responses.contains_key("400"), takes, "{what}");
            for (status, response) in responses {
                let is_problem = response["content"]["application/problem+json"].is_object();
                assert_eq!(is_problem, status.starts_with(['4', '5']), "{what} {status}");
            }
        }
        assert!(document["components"]["schemas"]["Failure"].is_object());
        // Things of one name in the code have different ones here.
        let schemas = &document["components"]["schemas"];
        for name in ["OrderKind", "EventKind", "WantedOrder", "Wanted", "Topology", "TopologyPort", "PortRecord"] {
            assert!(schemas[name].is_object(), "{name}");
        }
        assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    }

    #[test]
    fn every_reference_of_the_document_leads_somewhere() {
        fn references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(members) => {
                    found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    members.values().for_each(|member| references(member, found));
                }
                Value::Array(all) => all.iter().for_each(|one| references(one, found)),
                _ => {}
            }
        }
        let document = published();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("within the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }
}
