package postgres

import "context"

// ExecTag is Exec, and returns the last command tag, such as "COPY 12".
func (s *Session) ExecTag(ctx context.Context, sql string) (string, error) {
	return s.run(ctx, sql, func([]string) error { return nil })
}
