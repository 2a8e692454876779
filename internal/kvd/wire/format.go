package wire

// Needs returns the format of the cluster that a command needs: replicas of older versions
// would not execute it. See consensus.Format.
func (c *Command) Needs() uint64 {
	need := uint64(1)
	if c.Verb == Expire && (c.Cond == IfValue || c.Options&KeepTTL != 0) {
		need = 2
	}
	for i := range c.Commands {
		need = max(need, c.Commands[i].Needs())
	}
	return need
}

// FormatOverflow is the format from which on the answer to an Increment whose sum does not fit
// 64 bits has Found set beside WrongType.
const FormatOverflow = 3

// FormatUntouched is the format from which on every leader supports Untouched in a Guard.
const FormatUntouched = 3

// Settled returns the format from which on all versions answer a command in the same way.
func (c *Command) Settled() uint64 {
	from := c.Needs()
	if c.Verb == Increment {
		from = max(from, FormatOverflow)
	}
	for i := range c.Commands {
		from = max(from, c.Commands[i].Settled())
	}
	return from
}
