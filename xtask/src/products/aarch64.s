.text

// Goes on to a function of the engine.
.macro jump own, target
.globl \own
.type \own, %function
.balign 16
\own:
    bti c
    adrp x16, :got:\target
    ldr x16, [x16, :got_lo12:\target]
    br x16
.size \own, . - \own
.endm

// Answers with a number.
.macro answer own, value
.globl \own
.type \own, %function
.balign 16
\own:
    bti c
    mov x0, #\value
    ret
.size \own, . - \own
.endm

// Answers with a number and sets errno to EOPNOTSUPP.
.macro refuse own, value
.globl \own
.type \own, %function
.balign 16
\own:
    bti c
    stp x29, x30, [sp, #-16]!
    bl __errno_location
    mov w1, #95
    str w1, [x0]
    ldp x29, x30, [sp], #16
    mov x0, #\value
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
.type \own, %object
.balign 8
\own:
    .zero 8
.size \own, 8
.popsection
.endm

