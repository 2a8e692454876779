package wire

// Needs is the format of the cluster that a command needs: replicas of versions that
// know only older ones would not execute it. See consensus.Format.
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
