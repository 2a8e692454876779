package postgres

import "testing"

func TestTextsThatLeaveNoTransactionBehind(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"BEGIN; SELECT 1; COMMIT":                                           true,
		"begin; insert into t values ('a;b'); end":                          true,
		"SELECT 1; START TRANSACTION; SELECT 2; ROLLBACK WORK; SELECT 3":    true,
		"BEGIN; SAVEPOINT a; ROLLBACK TO a; COMMIT; ":                       true,
		"BEGIN; COMMIT AND NO CHAIN":                                        true,
		"BEGIN; COMMIT AND CHAIN; ABORT":                                    true,
		"SELECT 1; BEGIN":                                                   false,
		"BEGIN; SELECT 'COMMIT'; /* ; COMMIT */ -- ; COMMIT":                false,
		"BEGIN; COMMIT AND CHAIN":                                           false,
		"BEGIN; ROLLBACK TO SAVEPOINT a":                                    false,
		"BEGIN; COMMIT PREPARED 'x'":                                        false,
		"BEGIN; PREPARE TRANSACTION 'x'":                                    false,
		"BEGIN; COMMIT; BEGIN":                                              false,
		"BEGIN; SELECT $$; COMMIT; $$":                                      false,
		`BEGIN; SELECT E'\'; COMMIT --'`:                                    false,
		"BEGIN; CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END": false,
	} {
		if got := endsOutside(sql); got != want {
			t.Errorf("%s: %v", sql, got)
		}
	}
}
