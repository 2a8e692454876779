package outboxctl

import (
	"strings"
	"testing"
)

func TestParseDatabase(t *testing.T) {
	for _, name := range []string{
		"PGHOST", "PGHOSTADDR", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSERVICE", "PGSSLMODE",
		"MYSQL_HOST", "MYSQL_TCP_PORT", "MYSQL_UNIX_PORT", "MYSQL_PWD",
	} {
		t.Setenv(name, "")
	}
	for _, tt := range []struct {
		text    string
		engine  Engine
		address string
		shows   bool
		wrong   string
	}{
		{text: "postgres://app:pw@db:6000/shop", engine: Postgres, address: "postgres://db:6000/shop", shows: true},
		{text: "PostgreSQL://app@db/shop", engine: Postgres, address: "postgres://db:5432/shop"},
		{text: "host=db user=app dbname=shop", engine: Postgres, address: "postgres://db:5432/shop"},
		{text: "mysql://app:p%40w@db/shop", engine: MySQL, address: "mysql://db:3306/shop", shows: true},
		{text: "mariadb://app@db:3307/shop", engine: MySQL, address: "mysql://db:3307/shop"},
		{text: "app:pw@tcp(db:3306)/shop", engine: MySQL, address: "mysql://db:3306/shop", shows: true},
		{text: "sqlite:shop.db", engine: SQLite, address: "sqlite:shop.db"},
		{text: "sqlite:///var/shop.db", engine: SQLite, address: "sqlite:/var/shop.db"},
		{text: "/var/shop.db", engine: SQLite, address: "sqlite:/var/shop.db"},
		{text: "shop.db", engine: SQLite, address: "sqlite:shop.db"},
		{text: "oracle://db", wrong: `unknown kind of database "oracle"`},
		{text: "mysql:shop", wrong: `unknown kind of database "mysql"`},
		{text: "file:shop.db", engine: SQLite, address: "sqlite:shop.db"},
		{text: "./a:b.db", engine: SQLite, address: "sqlite:./a:b.db"},
		{text: "sqlite::memory:", wrong: "want the path of a file"},
		{text: "", wrong: "no database"},
	} {
		d, err := ParseDatabase(tt.text, func(string) string { return "" })
		switch {
		case tt.wrong != "":
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%q: %v, want %q", tt.text, err, tt.wrong)
			}
		case err != nil || d.Engine != tt.engine || d.Address != tt.address || d.ShowsPassword != tt.shows:
			t.Errorf("%q: %+v, %v", tt.text, d, err)
		}
	}
	d, err := ParseDatabase("", func(name string) string { return map[string]string{"PGHOST": "db"}[name] })
	if err != nil || d.Engine != Postgres {
		t.Errorf("from PGHOST: %+v, %v", d, err)
	}
	d, err = ParseDatabase("", func(name string) string { return map[string]string{"MYSQL_HOST": "db"}[name] })
	if err != nil || d.Engine != MySQL {
		t.Errorf("from MYSQL_HOST: %+v, %v", d, err)
	}
}

// Whatever is wrong with a connection string, its password is not repeated.
func FuzzParseDatabase(f *testing.F) {
	const secret = "geheim"
	for _, tt := range []struct{ before, after string }{
		{"postgres://app:", "@db:notaport/shop"},
		{"postgres://:", ""},
		{"postgres://app:", "@db/shop?sslmode=never"},
		{"mysql://app:", "@db/shop?nonsense=1"},
		{"host=db password=", " user=app port=x"},
		{"app:", "@tcp(db)/shop"},
		{"app:", "@unix(/run/s)/"},
		{"oracle://app:", "@db"},
	} {
		f.Add(tt.before, tt.after)
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.Contains(before+after, secret) || !strings.HasSuffix(before, ":") && !strings.HasSuffix(before, "password=") {
			return
		}
		d, err := ParseDatabase(before+secret+after, func(string) string { return "" })
		if d.Engine == SQLite {
			return // a path has no password
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%q, %q: %v", before, after, err)
		}
	})
}
