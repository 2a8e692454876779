package core

// Accounts counts the databases and users that are kept.
func (p *Places) Accounts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.databases) + len(p.users)
}
