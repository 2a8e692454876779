package mysql

import (
	"slices"
	"testing"
)

// TestUnseen tells from grants what an account is not shown.
func TestUnseen(t *testing.T) {
	for _, c := range []struct {
		name   string
		grants []string
		want   []string
	}{
		{"root", []string{"GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION"}, nil},
		{"the documented rights", []string{
			"GRANT RELOAD, BINLOG MONITOR ON *.* TO `b`@`%`", "GRANT SELECT, LOCK TABLES, SHOW VIEW, EVENT, TRIGGER ON `sh\\_op`.* TO `b`@`%`",
			"GRANT SELECT ON `mysql`.`proc` TO `b`@`%`",
		}, nil},
		{"a pattern", []string{"GRANT SELECT, EVENT, TRIGGER, EXECUTE ON `sh%`.* TO `b`@`%`"}, nil},
		{"another database", []string{"GRANT ALL PRIVILEGES ON `shxop`.* TO `b`@`%`"}, []string{"TRIGGER", "SELECT", "EVENT", "EXECUTE"}},
		{"rows only", []string{"GRANT SELECT ON *.* TO `b`@`%`"}, []string{"TRIGGER", "EVENT"}},
		{"one table", []string{"GRANT USAGE ON *.* TO `b`@`%`", "GRANT SELECT, TRIGGER ON `sh_op`.`x` TO `b`@`%`"}, []string{"TRIGGER", "SELECT", "EVENT", "EXECUTE"}},
		{"a role and a proxy", []string{"GRANT `r` TO `b`@`%`", "GRANT PROXY ON ''@'%' TO 'b'@'%'"}, []string{"TRIGGER", "SELECT", "EVENT", "EXECUTE"}},
	} {
		var all rights
		for _, line := range c.grants {
			if r, ok := parseRight(line); ok {
				all = append(all, r)
			}
		}
		if _, got := all.unseen("sh_op", false); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
