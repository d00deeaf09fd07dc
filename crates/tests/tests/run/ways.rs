//! The ways in: programs that are linked, that open the library themselves, that look elsewhere first, whose plugins look at
//! home first. Each prints which device it found, and that the functions came from one engine.

use super::{cc, has_headers, run, said, sfab};
use scalefabric_tests::Folder;

/// Opens `libibverbs.so.1` and asks for functions by version, as NCCL does.
const OPENS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int n, char **v) {
    void *library = dlopen(v[1], RTLD_NOW);
    if (!library) { printf("%s\n", dlerror()); return 1; }
    void **(*list)(int *) = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
    const char *(*name)(void *) = dlvsym(library, "ibv_get_device_name", "IBVERBS_1.1");
    void *speed = dlvsym(library, "ibv_query_port_speed", "IBVERBS_1.16");
    if (!list || !name) { printf("%s\n", dlerror()); return 1; }
    int count = 0;
    void **devices = list(&count);
    for (int i = 0; i < count; i++) printf("%s ", name(devices[i]));
    printf("%s\n", speed ? "new" : "old");
    return 0;
}"#;

/// Linked with libibverbs.
const LINKED: &str = r#"
#include <infiniband/verbs.h>
#include <stdio.h>
int main(void) {
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    for (int i = 0; i < count; i++) printf("%s ", ibv_get_device_name(devices[i]));
    printf("\n");
    ibv_free_device_list(devices);
    return 0;
}"#;

#[test]
fn a_linked_program_finds_the_device_whichever_way_it_goes() {
    let (Some(sfab), true) = (sfab(), has_headers()) else { return };
    let folder = Folder::new("linked");
    let program = cc(&folder, "linked", LINKED, &["-libverbs"]);
    for mode in ["auto", "preload", "dropin", "audit"] {
        let text = said(&run(sfab, &["--mode", mode], &program, &[]));
        assert!(text.contains("sflo"), "{mode}: {text}");
    }
    let shown = said(&run(sfab, &["--show"], &program, &[]));
    assert!(shown.starts_with("# Preload"), "{shown}");
}

#[test]
fn a_program_that_opens_the_library_by_itself_finds_the_device() {
    let Some(sfab) = sfab() else { return };
    let folder = Folder::new("opens");
    let program = cc(&folder, "opens", OPENS, &["-ldl"]);
    for mode in ["auto", "dropin", "audit"] {
        for library in ["libibverbs.so.1", "libibverbs.so"] {
            let text = said(&run(sfab, &["--mode", mode], &program, &[library]));
            assert!(text.contains("sflo") && text.ends_with("new\n"), "{mode} {library}: {text}");
        }
    }
    let shown = said(&run(sfab, &["--show"], &program, &[]));
    assert!(shown.starts_with("# Dropin"), "{shown}");
}

#[test]
fn a_library_that_an_rpath_leads_to_is_not_used() {
    let Some(sfab) = sfab() else { return };
    let folder = Folder::new("rpath");
    std::fs::create_dir(folder.join("own")).unwrap();
    // A vendored library, which knows no device.
    let list = "void **ibv_get_device_list(int *n) { static void *none[1]; *n = 0; return none; }
                const char *ibv_get_device_name(void *d) { return \"wrong\"; }";
    let map = folder.join("map");
    std::fs::write(&map, "IBVERBS_1.1 { global: ibv_*; local: *; };").unwrap();
    let script = format!("-Wl,--version-script={}", map.display());
    cc(&folder, "own/libibverbs.so.1", list, &["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", &script]);
    let rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/own";
    let program = cc(&folder, "opens", OPENS, &["-ldl", rpath]);
    let text = said(&run(sfab, &[], &program, &["libibverbs.so.1"]));
    assert!(text.contains("sflo"), "{text}");
    let shown = said(&run(sfab, &["--show"], &program, &[]));
    assert!(shown.starts_with("# Audit"), "{shown}");
}

#[test]
fn a_plugin_that_looks_at_home_first_finds_the_engine_of_its_program() {
    let (Some(sfab), true) = (sfab(), has_headers()) else { return };
    let folder = Folder::new("deepbind");
    let plugin = cc(
        &folder,
        "plugin.so",
        r#"#include <infiniband/verbs.h>
           struct ibv_device *first(void) { return ibv_get_device_list(0)[0]; }"#,
        &["-shared", "-fPIC", "-libverbs"],
    );
    let program = cc(
        &folder,
        "host",
        r#"#define _GNU_SOURCE
           #include <dlfcn.h>
           #include <infiniband/verbs.h>
           #include <stdio.h>
           int main(int n, char **v) {
               void *plugin = dlopen(v[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
               struct ibv_device *(*first)(void) = plugin ? dlsym(plugin, "first") : 0;
               if (!first) { printf("%s\n", dlerror()); return 1; }
               // A device keeps its address: the same one means the same engine.
               printf("%s\n", first() == ibv_get_device_list(0)[0] ? "one engine" : "two engines");
               return 0;
           }"#,
        &["-libverbs", "-ldl"],
    );
    for mode in ["dropin", "audit"] {
        let text = said(&run(sfab, &["--mode", mode], &program, &[&plugin.display().to_string()]));
        assert_eq!(text, "one engine\n", "{mode}");
    }
}

/// Vendors' libraries want private functions of the library whose place is taken.
#[test]
fn the_distributions_libraries_load_above_the_drop_in() {
    let Some(sfab) = sfab() else { return };
    let folder = Folder::new("vendors");
    let program = cc(
        &folder,
        "loads",
        r#"#include <dlfcn.h>
           #include <stdio.h>
           int main(int n, char **v) {
               for (int i = 1; i < n; i++)
                   if (!dlopen(v[i], RTLD_NOW)) printf("%s\n", dlerror());
               printf("loaded\n");
               return 0;
           }"#,
        &["-ldl"],
    );
    let machine = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let there = ["libmlx5.so.1", "libefa.so.1", "librdmacm.so.1", "libmlx4.so.1", "libmana.so.1"]
        .into_iter()
        .filter(|name| std::path::Path::new(&machine).join(name).exists());
    let libraries: Vec<&str> = there.collect();
    if libraries.is_empty() {
        println!("skipped: no vendor's library is installed; install the package ibverbs-providers");
        return;
    }
    let text = said(&run(sfab, &["--mode", "dropin"], &program, &libraries));
    assert_eq!(text, "loaded\n");
}
