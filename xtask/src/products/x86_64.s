.intel_syntax noprefix
.text

// Goes on to a function of the engine.
.macro jump own, target
.globl \own
.type \own, @function
.balign 16
\own:
    endbr64
    jmp qword ptr [rip + \target@GOTPCREL]
.size \own, . - \own
.endm

// Answers with a number.
.macro answer own, value
.globl \own
.type \own, @function
.balign 16
\own:
    endbr64
    mov rax, \value
    ret
.size \own, . - \own
.endm

// Answers with a number and sets errno to EOPNOTSUPP.
.macro refuse own, value
.globl \own
.type \own, @function
.balign 16
\own:
    endbr64
    sub rsp, 8
    call __errno_location@PLT
    mov dword ptr [rax], 95
    add rsp, 8
    mov rax, \value
    ret
.size \own, . - \own
.endm

.macro unsupported own
    answer \own, 95
.endm
.macro zero own
    answer \own, 0
.endm
.macro null own
    refuse \own, 0
.endm
.macro minus own
    refuse \own, -1
.endm
.macro data own
.pushsection .bss
.globl \own
.type \own, @object
.balign 8
\own:
    .zero 8
.size \own, 8
.popsection
.endm

