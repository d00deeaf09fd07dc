//! Functions of libibverbs that are newer than our tables: they run in the real library, with a context of ours.

use super::{cc, has_headers, run, said, sfab};
use scalefabric_tests::Folder;

/// The real library's own versions of functions that we do have stand for newer ones. Each must refuse, with an errno.
const REAL: &str = r#"#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

static int wrong;
static void refused(const char *name, int failed) {
    if (!failed || errno == 0) wrong = 1;
    printf("%s %s\n", name, failed ? strerror(errno) : "worked");
}
#define real(name) ((__typeof__(&name))dlsym(library, #name))

int main(void) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    struct ibv_context *context = NULL;
    for (int i = 0; i < count; i++)
        if (!strcmp(ibv_get_device_name(list[i]), "sflo")) context = ibv_open_device(list[i]);
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    if (!library || !pd || dlsym(library, "ibv_alloc_pd") == (void *)ibv_alloc_pd) return 2;
    errno = 0;
    struct ibv_device_attr attr;
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};
    struct ibv_ah_attr to = {.port_num = 1};
    struct ibv_srq_init_attr srq = {.attr = {1, 1, 0}};
    refused("alloc_pd", !real(ibv_alloc_pd)(context));
    refused("create_cq", !real(ibv_create_cq)(context, 1, NULL, NULL, 0));
    refused("reg_dmabuf_mr", !real(ibv_reg_dmabuf_mr)(pd, 0, 8, 0, 0, 0));
    refused("create_ah", !real(ibv_create_ah)(pd, &to));
    refused("create_srq", !real(ibv_create_srq)(pd, &srq));
    refused("create_qp", !real(ibv_create_qp)(pd, &init));
    refused("query_device", real(ibv_query_device)(context, &attr) != 0);
    refused("import_pd", !real(ibv_import_pd)(context, 1));
    return wrong;
}
"#;

#[test]
fn what_only_the_real_library_has_fails_cleanly_with_a_context_of_ours() {
    let (Some(sfab), true) = (sfab(), has_headers()) else { return };
    let machine = format!("/usr/lib/{}-linux-gnu/libibverbs.so.1", std::env::consts::ARCH);
    let places = [machine.as_str(), "/usr/lib64/libibverbs.so.1"];
    let Some(library) = places.into_iter().find(|place| std::path::Path::new(place).exists()) else {
        println!("skipped: no libibverbs is installed; install the package libibverbs1");
        return;
    };
    let folder = Folder::new("newer");
    let program = cc(&folder, "newer", REAL, &[&format!("-DLIBRARY=\"{library}\""), "-libverbs", "-ldl"]);
    let text = said(&run(sfab, &["--mode", "preload"], &program, &[]));
    assert_eq!(text.lines().filter(|line| line.ends_with("Operation not supported")).count(), 8, "{text}");
}
