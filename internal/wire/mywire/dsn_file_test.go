package mywire

import "testing"

func TestClientFile(t *testing.T) {
	file := clientOptions("# mine\n[mysqld]\nuser=mysql\n[client]\nuser = backup\npassword=\"p#w\\\\\"\nhost=db.example\nport=3307 # of the standby\n[mysql]\nuser=other\n")
	none := func(string) string { return "" }
	check := func(dsn, user, password, address string) {
		t.Helper()
		c, err := parseClientDSN(dsn, none, file)
		if err != nil || c.User != user || c.Password != password || c.Address != address {
			t.Errorf("%s: %q %q at %q, %v", dsn, c.User, c.Password, c.Address, err)
		}
	}
	check("mysql:///shop", "backup", `p#w\`, "db.example:3307")
	check("mysql://me@other/shop", "me", `p#w\`, "other:3307")
	check("mysql://me:x@other:3308/shop", "me", "x", "other:3308")
	check("mysql://me:x@%2Frun%2Fmy.sock/shop", "me", "x", "/run/my.sock")
	c, err := parseClientDSN("mysql:///shop", func(name string) string { return map[string]string{"MYSQL_PWD": "env"}[name] }, file)
	if err != nil || c.Password != "env" {
		t.Errorf("the environment counts for more: %q, %v", c.Password, err)
	}
}
