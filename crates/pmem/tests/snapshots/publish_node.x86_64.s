durix_publish_node:
pushq %r15
pushq %r14
pushq %r12
pushq %rbx
pushq %rax
movq 16(%rdi), %r9
andq %rdx, %r9
andq $-64, %r9
movq (%rdi), %r10
leaq (%r10,%r9), %rax
movq %rcx, (%r10,%r9)
movq %r8, 8(%r10,%r9)
movzbl 24(%rdi), %ecx
testl %ecx, %ecx
jne .LBB0_1
clwb (%rax)
sfence
movq %rdx, (%rsi)
andq $-57, %rsi
clwb (%rsi)
jmp .LBB0_7
.LBB0_1:
cmpl $4, %ecx
je .LBB0_5
cmpl $5, %ecx
jne .LBB0_6
movq %rdx, (%rsi)
jmp .LBB0_8
.LBB0_5:
sfence
movq %rdx, (%rsi)
.LBB0_7:
sfence
.LBB0_8:
addq $8, %rsp
popq %rbx
popq %r12
popq %r14
popq %r15
retq
.LBB0_6:
movzbl %cl, %ebx
movq _ZN10durix_pmem6medium8hardware8Hardware20write_back_otherwise17hd4c03fd66aa00dcbE@GOTPCREL(%rip), %r15
movq %rdx, %r12
movl $1, %edx
movl %ebx, %edi
movq %rsi, %r14
movq %rax, %rsi
callq *%r15
sfence
movq %r12, (%r14)
andq $-57, %r14
movl $1, %edx
movl %ebx, %edi
movq %r14, %rsi
callq *%r15
jmp .LBB0_7
.Lfunc_end0:
