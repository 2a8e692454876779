package mysql

import "testing"

func TestStatementsThatChangeNewSessions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"GRANT ALL ON *.* TO u":                     true,
		"CREATE USER u":                             true,
		"create or replace user u":                  true,
		"ALTER /*c*/ USER u ACCOUNT LOCK":           true,
		"CREATE /*!50000 USER */ u":                 true,
		"CREATE /*M!100500 OR REPLACE */ ROLE r":    true,
		"DROP -- a line\n USER u":                   true,
		"FLUSH PRIVILEGES":                          true,
		"FLUSH LOCAL PRIVILEGES":                    true,
		"FLUSH STATUS, PRIVILEGES":                  true,
		"ALTER DATABASE d CHARACTER SET latin1":     true,
		"FLUSH TABLES":                              false,
		"CREATE TABLE users (a int)":                false,
		"ALTER TABLE t ADD COLUMN privileges int":   false,
		"CREATE /*!50000 TABLE */ user_of (id int)": false,
	} {
		if got := newSessions.MatchString(text); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
