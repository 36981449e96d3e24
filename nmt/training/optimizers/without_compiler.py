"""torch's optimizers without torch's compiler.

torch tells its compiler to keep out of some of their methods, and imports it to tell it so: it takes three times as
long as torch itself. Nothing compiles an optimizer here, so these are the methods as they were before they were told,
and before anything else was wrapped around them.
"""

import inspect

import torch


class WithoutCompiler(torch.optim.Optimizer):
    """An optimizer that is made, and whose gradients are forgotten, without it. What it overrides is torch's own."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class Adam(WithoutCompiler, torch.optim.Adam):
    """`torch.optim.Adam`"""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class AdamW(WithoutCompiler, torch.optim.AdamW):
    """`torch.optim.AdamW`"""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
