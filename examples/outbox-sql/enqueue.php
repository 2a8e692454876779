<?php
// An order and its message in one transaction, with PDO (PHP 8, and pdo_mysql,
// pdo_pgsql or pdo_sqlite).
//
//   weir outbox migrate --db mysql://app@127.0.0.1/shop
//   php examples/outbox-sql/enqueue.php 'mysql:host=127.0.0.1;dbname=shop' app
//   weir outbox relay --db mysql://relay@127.0.0.1/shop --sink stdout:

declare(strict_types=1);

function placeOrder(PDO $db, int $number, string $customer, bool $fail = false): void
{
    $db->beginTransaction();
    try {
        $db->prepare('INSERT INTO orders (number, customer) VALUES (?, ?)')->execute([$number, $customer]);
        $message = $db->prepare('INSERT INTO weir_outbox (topic, msg_key, payload, headers) VALUES (?, ?, ?, ?)');
        $message->bindValue(1, 'orders');
        $message->bindValue(2, $customer);
        $message->bindValue(3, json_encode(['number' => $number], JSON_THROW_ON_ERROR), PDO::PARAM_LOB);
        $message->bindValue(4, json_encode(['type' => 'order.placed', 'content-type' => 'application/json'], JSON_THROW_ON_ERROR));
        $message->execute();
        if ($fail) {
            throw new RuntimeException('the card was declined');
        }
        $db->commit();
    } catch (Throwable $error) {
        $db->rollBack();
        throw $error;
    }
}

$db = new PDO($argv[1], $argv[2] ?? null, getenv('DB_PASSWORD') ?: null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
$db->exec('CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, customer VARCHAR(50) NOT NULL)');
$last = (int) $db->query('SELECT COALESCE(MAX(number), 0) FROM orders')->fetchColumn();
placeOrder($db, $last + 1, 'ada');
try {
    placeOrder($db, $last + 2, 'bob', fail: true);
} catch (RuntimeException $error) {
    echo 'order ', $last + 2, ' was rolled back with its message: ', $error->getMessage(), "\n";
}
placeOrder($db, $last + 3, 'ada');
