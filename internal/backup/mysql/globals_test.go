package mysql

import "testing"

// TestDefaultRoles takes them out of what MySQL prints of an account.
func TestDefaultRoles(t *testing.T) {
	for _, c := range []struct{ create, without, roles string }{
		{"CREATE USER `u`@`%` IDENTIFIED WITH 'x' AS 0x00 REQUIRE NONE", "CREATE USER `u`@`%` IDENTIFIED WITH 'x' AS 0x00 REQUIRE NONE", ""},
		{"CREATE USER `u`@`%` IDENTIFIED WITH 'x' AS 0x00 DEFAULT ROLE `a`@`%`,`b``c`@`%` REQUIRE NONE ACCOUNT LOCK", "CREATE USER `u`@`%` IDENTIFIED WITH 'x' AS 0x00 REQUIRE NONE ACCOUNT LOCK", "`a`@`%`,`b``c`@`%`"},
		{"CREATE USER `a DEFAULT ROLE b`@`%` IDENTIFIED WITH 'x' AS 'it\\' DEFAULT ROLE x' REQUIRE NONE", "CREATE USER `a DEFAULT ROLE b`@`%` IDENTIFIED WITH 'x' AS 'it\\' DEFAULT ROLE x' REQUIRE NONE", ""},
		{"CREATE USER `u`@`%` DEFAULT ROLE ` REQUIRE `@`%` REQUIRE SSL", "CREATE USER `u`@`%` REQUIRE SSL", "` REQUIRE `@`%`"},
		{"CREATE USER `u", "CREATE USER `u", ""},
	} {
		if without, roles := defaultRoles(c.create); without != c.without || roles != c.roles {
			t.Errorf("%s:\n%q\n%q", c.create, without, roles)
		}
	}
}
