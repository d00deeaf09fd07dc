//! The policy by its edges.

use super::*;
use scalefabric_verbs::PKey;

const POLICY: &str = r#"
    [[tenant]]
    name = "red"
    pkey = "0x8011"
    services = ["kv", "db-*"]
    nodes = ["n1", "n2"]
    quota = { qps = 4, memory_bytes = 1000 }

    [[tenant]]
    name = "blue"
    pkey = 0x12
    services = ["cache", "db-blue"]

    [[allow]]
    from = "red"
    to = "blue"
    services = ["cache"]
    pkey = "0x8013"
"#;

fn policy() -> Tenants {
    Tenants::from_toml(POLICY).unwrap()
}

#[test]
fn each_reaches_its_own_and_what_it_is_let_into_and_nothing_else() {
    let policy = policy();
    let grant = |tenant, service| policy.may_connect(tenant, service).map(|grant| grant.pkey.0);
    assert_eq!(grant("red", "kv"), Ok(0x8011));
    assert_eq!(grant("red", "db-7"), Ok(0x8011));
    assert_eq!(grant("blue", "cache"), Ok(0x8012));
    assert_eq!(grant("red", "cache"), Ok(0x8013));
    // An exact name counts more than a beginning: `db-blue` is blue's.
    assert_eq!(grant("blue", "db-blue"), Ok(0x8012));
    assert!(matches!(grant("red", "db-blue"), Err(Denied::NotAllowed { .. })));
    // Leave is for one direction.
    assert!(matches!(grant("blue", "kv"), Err(Denied::NotAllowed { .. })));
    assert!(matches!(grant("blue", "nobody"), Err(Denied::UnknownService { .. })));
    assert!(matches!(grant("green", "kv"), Err(Denied::UnknownTenant(_))));
    assert!(matches!(grant("", "kv"), Err(Denied::NotAllowed { .. })));
    assert_eq!(grant("", "nobody"), Ok(0xffff));
}

#[test]
fn a_service_is_offered_by_its_owner_and_what_is_nobodys_by_anybody() {
    let policy = policy();
    assert_eq!(policy.may_serve("red", "kv"), Ok(()));
    assert_eq!(policy.may_serve("blue", "db-blue"), Ok(()));
    assert_eq!(policy.may_serve("", "nobody"), Ok(()));
    assert_eq!(policy.may_serve("red", "nobody"), Ok(()));
    for (tenant, service) in [("blue", "kv"), ("red", "db-blue"), ("", "kv"), ("green", "cache")] {
        let text = policy.may_serve(tenant, service).unwrap_err().to_string();
        assert!(text.contains(&format!("may not offer `{service}`, which belongs to `")), "{text}");
    }
    assert_eq!(Tenants::default().may_serve("", "kv"), Ok(()));
}

#[test]
fn without_tenants_everybody_may() {
    assert_eq!(Tenants::default().may_connect("", "kv"), Ok(Grant { pkey: PKey::DEFAULT }));
    assert!(Tenants::default().may_connect("red", "kv").is_err());
}

#[test]
fn a_refusal_says_who_must_do_what() {
    let text = policy().may_connect("blue", "kv").unwrap_err().to_string();
    assert!(text.contains("belongs to `red`") && text.contains("[[allow]] from `blue` to `red`"), "{text}");
}

#[test]
fn a_node_has_the_partitions_of_those_who_may_run_there() {
    let policy = policy();
    let table = |node| policy.pkey_table(node).into_iter().map(|pkey| pkey.0).collect::<Vec<_>>();
    assert_eq!(table("n1"), [0xffff, 0x8011, 0x8012, 0x8013]);
    assert_eq!(table("n9"), [0xffff, 0x8012, 0x8013]);
    assert!(policy.may_run("red", "n2").is_ok());
    assert!(matches!(policy.may_run("red", "n9"), Err(Denied::WrongNode { .. })));
}

#[test]
fn each_mistake_is_named() {
    let broken = |from: &str, to: &str| Tenants::from_toml(&POLICY.replace(from, to)).unwrap_err();
    assert!(broken("\"blue\"\n    pkey = 0x12", "\"blue\"\n    pkey = 0x11").contains("has the P_Key of tenant `red`"));
    assert!(broken("\"0x8013\"", "\"0x12\"").contains("has the P_Key of tenant `blue`"));
    for pkey in ["\"0xffff\"", "\"0x7fff\"", "\"0x8000\"", "0", "70000", "\"red\""] {
        assert!(broken("\"0x8011\"", pkey).contains("0x8001 to 0xfffe"), "{pkey}");
    }
    assert!(broken("name = \"blue\"", "name = \"red\"").contains("twice"));
    assert!(broken("name = \"blue\"", "name = \"bl ue\"").contains("letters"));
    assert!(broken("\"db-blue\"", "\"kv\"").contains("belongs to `red` and to `blue`"));
    assert!(broken("\"db-*\"", "\"d*b\"").contains("one `*` at the end"));
    assert!(broken("to = \"blue\"", "to = \"red\"").contains("to itself"));
    assert!(broken("to = \"blue\"", "to = \"green\"").contains("no tenant `green`"));
    assert!(broken("qps = 4", "qbs = 4").contains("qbs"));
    assert!(broken("qps = 4", "rate_bps = 0").contains("rate_bps is 0: 1000 at least"));
}

#[test]
fn more_partitions_than_a_port_has_room_for_are_refused() {
    let some = |count: u16| {
        let tenants: Vec<String> = (1..=count).map(|n| format!("[[tenant]]\nname = \"t{n}\"\npkey = {n}\n")).collect();
        Tenants::from_toml(&tenants.concat())
    };
    assert!(some(63).is_ok());
    assert!(some(64).unwrap_err().contains("room for 63"));
}

#[test]
fn toml_and_json_are_the_same_policy() {
    let policy = policy();
    let json = serde_json::to_string(&policy).unwrap();
    assert_eq!(Tenants::from_json(&json), Ok(policy));
    assert!(json.contains("0x8012"));
}
