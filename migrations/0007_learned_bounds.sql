CREATE TABLE `learned_bound` (
	`upstream` text NOT NULL,
	`upstream_model` text NOT NULL,
	`basis` text NOT NULL,
	`permille` integer NOT NULL,
	`context_tokens` integer NOT NULL,
	`operation_id` text NOT NULL,
	`learned_at` integer NOT NULL,
	`seal` integer NOT NULL,
	PRIMARY KEY(`upstream`, `upstream_model`),
	FOREIGN KEY (`operation_id`) REFERENCES `operation`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "learned_bound_permille" CHECK("learned_bound"."permille" >= 1000),
	CONSTRAINT "learned_bound_context" CHECK("learned_bound"."context_tokens" >= 0)
) STRICT;
