durix_publish_node:
pushq %rbp
pushq %r15
pushq %r14
pushq %r12
pushq %rbx
movq %rdx, %rax
movq 16(%rdi), %r9
andq %rdx, %r9
andq $-64, %r9
movq (%rdi), %r10
leaq (%r10,%r9), %rdx
movq %rcx, (%r10,%r9)
movq %r8, 8(%r10,%r9)
movzbl 26(%rdi), %ecx
testl %ecx, %ecx
jne .LBB0_1
clwb (%rdx)
sfence
movq %rax, (%rsi)
andq $-57, %rsi
clwb (%rsi)
sfence
jmp .LBB0_6
.LBB0_1:
cmpl $5, %ecx
je .LBB0_5
movq %rax, %r14
movq %rsi, %r15
movzwl 24(%rdi), %ebx
movzbl %cl, %ebp
cmpl $4, %ecx
jne .LBB0_7
movl %ebx, %edi
movl %ebp, %esi
callq *_ZN10durix_pmem6medium8hardware8Hardware15fence_otherwise17he03907504a68857fE@GOTPCREL(%rip)
movq %r14, (%r15)
.LBB0_8:
movl %ebx, %edi
movl %ebp, %esi
popq %rbx
popq %r12
popq %r14
popq %r15
popq %rbp
jmpq *_ZN10durix_pmem6medium8hardware8Hardware15fence_otherwise17he03907504a68857fE@GOTPCREL(%rip)
.LBB0_5:
movq %rax, (%rsi)
.LBB0_6:
popq %rbx
popq %r12
popq %r14
popq %r15
popq %rbp
retq
.LBB0_7:
movq _ZN10durix_pmem6medium8hardware8Hardware20write_back_otherwise17h8664515e5bda1640E@GOTPCREL(%rip), %r12
movl $1, %ecx
movl %ebx, %edi
movl %ebp, %esi
callq *%r12
movl %ebx, %edi
movl %ebp, %esi
callq *_ZN10durix_pmem6medium8hardware8Hardware15fence_otherwise17he03907504a68857fE@GOTPCREL(%rip)
movq %r15, %rdx
movq %r14, (%r15)
andq $-57, %rdx
movl $1, %ecx
movl %ebx, %edi
movl %ebp, %esi
callq *%r12
jmp .LBB0_8
.Lfunc_end0:
