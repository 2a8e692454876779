package core

import "context"

// Deafen has the sockets not hear that no more clients are taken.
func (s *Server[L]) Deafen() { s.accepting = context.Background() }

// Accounts counts the databases and users that are kept.
func (p *ConnQuotas) Accounts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.databases) + len(p.users)
}
