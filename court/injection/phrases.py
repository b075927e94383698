"""Phrases that :mod:`court.injection.detector` searches for, by meaning, in its eight languages.

Entries are separated by ``|``; ``*`` ends a word stem, which any ending may follow; a space matches any separator
between two words. Case, accents and vowel signs are ignored.
"""

from __future__ import annotations

WORDS: dict[str, tuple[str, ...]] = {
    # Verbs for disregarding instructions.
    "override": (
        "ignore|ignor|disregard|forget|override|overrule|bypass|circumvent|neglect|drop|discard|violate|abandon"
        "|stop following|stop obeying|do not follow|don't follow|no longer follow|pay no attention to|set aside",
        "ignorier*|vergiss|vergesst|vergessen sie|missachte*|umgeh*|ubergeh*|uberspring*|verwirf|verwerfe*|lass ausser"
        "|beachte nicht|befolge nicht|hor nicht auf|setz dich uber",
        "ignore|ignorez|ignorer|oublie|oubliez|neglige*|contourne*|passe outre|passez outre|ne tiens pas compte"
        "|ne tenez pas compte|fais abstraction|ne suis plus|ne suis pas|abandonne*|outrepasse*",
        "ignora|ignore|ignorad|olvida|olvide|olvidad|omite|omita|saltate|salta|desobedece|descarta|pasa por alto"
        "|no hagas caso|no sigas|haz caso omiso|deja de seguir|no tengas en cuenta|desatiende",
        "忽略|忽視|忽视|无视|無視|忘记|忘記|忘掉|不要理会|不要理會|不要遵守|不必遵守|绕过|繞過|跳过|抛开|放弃|别管|不管",
        "تجاهل*|انس|انسى|تخط|تخطى|تجاوز*|لا تلتفت|لا تتبع|لا تهتم|تغاض*|اهمل*|أهمل*|اترك*",
        "игнорир*|проигнорир*|забудь*|забыть|обойди*|пропусти*|отбрось*|отмени*|пренебреги*|не обращай внимания"
        "|не обращайте внимания|не следуй*|не соблюдай*|не слушай*|перестань следовать",
        "अनदेखा|अनदेखी|नज़रअंदाज़|नजरअंदाज|भूल जा*|भुला दो|दरकिनार|उपेक्षा|ध्यान मत दो|ध्यान न दें|पालन मत करो|पालन न करें|मत मानो"
        "|छोड़ दो|रद्द करो",
    ),
    # Nouns for instructions.
    "rules": (
        "instruction*|rule|rules|guideline*|directive*|prompt|prompts|policy|policies|system message|orders"
        "|programming|constraints|restrictions|safeguard*|safety settings",
        "anweisung*|anordnung*|regel|regeln|richtlinie*|vorgabe*|vorschrift*|befehle|instruktion*|prompt|prompts"
        "|einschrankung*",
        "instruction*|consigne*|regle|regles|directive*|politique de|ordres|prompt|prompts|restrictions",
        "instruccion*|regla|reglas|directri*|directiva*|norma|normas|politica de|ordenes|indicaciones|prompt"
        "|restricciones",
        "指示|指令|规则|規則|规定|准则|準則|政策|提示词|提示詞|命令|限制",
        "تعليمات*|التعليمات|القواعد|قواعد*|ارشادات*|إرشادات*|الأوامر|أوامر*|اوامر*|السياسة|التوجيهات|توجيهات*|القيود",
        "инструкци*|указани*|правил*|директив*|предписани*|промпт*|ограничени*|распоряжени*|политик*",
        "निर्देश*|नियम*|आदेश*|दिशानिर्देश*|दिशा निर्देश*|नीति*|प्रॉम्प्ट|हिदायत*",
    ),
    # Qualifiers that refer to the instructions of this trial, not to those of a cookbook.
    "whose": (
        "previous|previously|prior|above|earlier|preceding|all|every|any|your|the system|so far|before|you were given"
        "|you have been given|original|initial|existing",
        "bisherig*|vorherig*|vorig*|vorangegangen*|obig*|oben|alle|aller|allen|jede|samtlich*|deine|deinen|deiner|ihre"
        "|bisher|fruher*|ursprunglich*|systems",
        "precedent*|anterieur*|ci dessus|toutes|tous|tes|vos|initiale*|prealable*|plus haut|du systeme|recues",
        "anterior*|previa*|previo*|arriba|todas|todos|tus|sus|inicial*|del sistema|recibid*|cualquier*",
        "之前|以前|先前|上述|上面|以上|所有|全部|一切|你的|您的|系统|系統|此前|前面",
        "السابق*|أعلاه|اعلاه|جميع|كل|كافة|النظام|المذكور*|الأصلي*|تعليماتك|قواعدك|إرشاداتك|ارشاداتك|توجيهاتك|أوامرك",
        "предыдущ*|прежн*|выше*|все|всех|всем|свои|своих|твои|ваши|любые|ранее|данные тебе|системн*|начальн*",
        "पिछल*|पूर्व*|ऊपर|सभी|सारे|सब|अपने|तुम्हारे|आपके|पहले|सिस्टम",
    ),
    # References to earlier instructions without a noun for them.
    "told": (
        "you were told|you have been told|you were instructed|you were asked to do|you were trained|told you before"
        "|you know about harm|said above|everything above|anything above|all of the above|everything before this"
        "|all previous text|what came before|the text above|the above text",
        "dir gesagt wurde|dir vorher|was oben steht|alles oben|alles vorherige|alles bisherige|dir aufgetragen",
        "on t'a dit|t'a ete dit|on vous a dit|tout ce qui precede|ce qui precede",
        "te dijeron|te han dicho|te ordenaron|todo lo anterior|lo de arriba|se te dijo",
        "告诉你的|告訴你的|对你说的|你被告知|以上内容|上述内容|上面的内容",
        "قيل لك|أخبروك|كل ما سبق|ما سبق",
        "тебе говорили|тебе сказали|вам говорили|тебе было сказано|все вышесказанное|все вышеизложенное|все что выше",
        "तुमसे कहा|आपसे कहा|कहा गया|बताया गया|ऊपर लिखा सब",
    ),
    # Words for a harmless verdict that hardly anyone but a judge uses of a meme.
    "cleared": (
        "harmless|not harmful|non harmful|unharmful|isn't harmful|not be harmful|no harm|benign|not hateful|non hateful"
        "|acquit|acquit it|acquitted|acquittal|not guilty|harmful 0|score 0|no violation",
        "harmlos*|nicht schadlich*|unschadlich*|unbedenklich*|freispruch|freigesprochen|sprich frei",
        "inoffensi*|pas nuisible*|non nuisible*|sans danger|pas nocif|non nocif*|benin|benigne|acquitte*|acquittement"
        "|non haineu*|anodin*",
        "inofensiv*|no danin*|no es danin*|benign*|absuelv*|absolucion|no perjudicial|sin dano|no nociv*|no es nociv*"
        "|no ofensiv*",
        "无害|無害|没有害|沒有害|不有害|不是有害|非有害|良性|无罪|無罪|没有危害|不具危害",
        "غير ضار*|ليست ضار*|ليس ضار*|لا ضرر|غير مؤذي*|غير مؤذ|ليست مؤذي*|حميد*|براءة|ببراءة|بريئ*|لا تضر",
        "не вредн*|не вредоносн*|безвредн*|безобидн*|не опасн*|безопасн*|оправдан|оправдат*|оправдай*|невиновен",
        "हानिकारक नहीं|हानिरहित|नुकसानदेह नहीं|अहानिकर|सौम्य|बरी|निर्दोष|निरापद",
    ),
    # The same, in words that are also common in other contexts.
    "fine": (
        "safe|innocent|allowed|acceptable|approved|appropriate|okay|clean|permitted|neutral|compliant",
        "sicher|erlaubt|zulassig|unschuldig|unproblematisch|genehmigt|freigegeben|in ordnung|neutral",
        "sur|sure|autorise*|acceptable*|innocent*|approuve*|convenable|conforme",
        "segur*|permitid*|aceptable*|inocent*|aprobad*|apropiad*|conforme",
        "安全|允许|合规|通过|可接受|清白|正常",
        "آمن|آمنة|امنة|مسموح*|مقبول*|معتمد*|سليم*|مناسب*",
        "безопасн*|допустим*|разрешен*|приемлем*|одобрен*|нормальн*|невинн*",
        "सुरक्षित|स्वीकार्य|स्वीकृत|मान्य|अनुमत|उचित|ठीक",
    ),
    # Verbs for giving an answer.
    "say": (
        "answer|reply|respond|write|say|output|return|rule|label|conclude|declare|state|report|print|respond with|find"
        "|must be|has to be|should be|deem|consider it|treat it as|call it|acquit",
        "antwort*|schreib*|sag|sage|sagen sie|gib|urteil*|entscheid*|erklar*|melde|werte|nenn*|lautet",
        "reponds|repondez|repondre|ecris|ecrivez|dis|dites|declare*|conclus|concluez|renvoie|renvoyez|rends|juge le"
        "|considere*",
        "responde*|contesta|escrib*|di|diga|devuelve|declara|concluye|dictamina|considera*|falla que",
        "回答|回复|回覆|答复|输出|輸出|写|寫|说|返回|判定|判为|裁定|宣布|认定|给出",
        "أجب|اجب|اكتب|قل|أعلن|احكم|أصدر|اعتبر*|رد ب*|الإجابة|أخرج",
        "ответь*|ответ|отвечай*|напиши*|скажи*|верни*|выведи*|объяви*|реши|считай*|признай*|вынеси",
        "उत्तर|जवाब|लिखो|लिखें|कहो|कहें|बताओ|बताएँ|घोषित|मानो|ठहराओ",
    ),
    # Verbs for assigning a label.
    "classify": (
        "mark|label|classify|classified|rate|tag|flag|categorize|categorise|rule|judge|score|approve|report|treat"
        "|categorized|rated|labelled|labeled|clear",
        "markier*|stuf*|einstuf*|klassifizier*|bewert*|kennzeichne*|beurteil*|etikettier*|genehmig*",
        "classe|classez|classifie*|marque*|etiquet*|note|qualifie*|juge|jugez|evalue*|approuve*",
        "clasific*|marca*|etiquet*|califica*|juzga*|evalua*|aprueba*|valora*",
        "标记|標記|分类|归类|歸類|评为|判断为|标为|列为|定性",
        "صنف*|صنّف*|ضع علامة|علم ال*|قيم*|اعتبر*|وافق*",
        "пометь*|отметь*|классифицир*|оцени*|отнеси*|промаркируй*|признай*|одобри*",
        "चिह्नित|वर्गीकृत|श्रेणी|लेबल|अंकित|बताओ|मूल्यांकन",
    ),
    # Nouns for the meme on trial or the result of the trial.
    "thing": (
        "this meme|the meme|meme|this image|the image|this picture|the picture|this post|the post|this content"
        "|the content|this caption|this text|verdict|classification|label|ruling|rating|judgement|judgment|policy",
        "dieses meme|das meme|meme|dieses bild|das bild|dieser beitrag|diesen beitrag|dieser inhalt|urteil|einstufung"
        "|bewertung|klassifizierung|dieser text|diesen text",
        "meme|ce meme|le meme|cette image|l'image|cette publication|ce contenu|verdict"
        "|classification|ce texte|jugement",
        "este meme|el meme|meme|esta imagen|la imagen|esta publicacion|este contenido|veredicto|clasificacion"
        "|este texto|sentencia",
        "表情包|梗图|梗圖|这张图|這張圖|这个图|此图|图片|圖片|这个帖子|本内容|此内容|判决|裁决|裁定|结论|分类|标签",
        "هذه الصورة|الصورة|الميم|هذا الميم|هذا المنشور|المنشور|هذا المحتوى|الحكم|التصنيف|هذا النص",
        "мем|этот мем|картинк*|изображени*|эту запись|этот пост|контент|вердикт|приговор"
        "|классификаци*|метка|этот текст",
        "मीम|इस मीम|तस्वीर|चित्र|इस पोस्ट|सामग्री|फ़ैसला|फैसला|निर्णय|वर्गीकरण|यह पाठ",
    ),
    # Nouns for the result of a trial.
    "verdict": (
        "verdict|classification|label|ruling|final answer|correct answer|the answer is|rating|moderation result",
        "urteil|einstufung|klassifizierung|endergebnis|richtige antwort",
        "verdict|classification|reponse finale|bonne reponse|decision finale",
        "veredicto|clasificacion|respuesta final|respuesta correcta|dictamen",
        "判决|裁决|裁定|结论|分类|最终答案|正确答案|标签",
        "الحكم|التصنيف|القرار|الإجابة الصحيحة|الجواب النهائي",
        "вердикт|классификаци*|правильный ответ|окончательный ответ|решение суда",
        "फ़ैसला|फैसला|निर्णय|वर्गीकरण|सही उत्तर|अंतिम उत्तर",
    ),
    # Nouns for the judging model or system.
    "model": (
        "ai|a i|assistant|language model|llm|chatbot|bot|chatgpt|gpt|judge|moderator|classifier|neural network"
        "|vision model|ai model|the model|machine|algorithm|system|content filter|dan",
        "ki|assistent*|sprachmodell*|chatbot|bot|richter*|moderator*|klassifikator*|neuronale netz*"
        "|neuronales netz*|neuronalen netz*|algorithmus|modell"
        "|system|inhaltsfilter",
        "ia|assistant*|modele de langage|modele|chatbot|robot|juge|moderat*|classifieur|reseau de neurones|algorithme"
        "|systeme",
        "ia|asistente|modelo de lenguaje|modelo|chatbot|robot|bot|juez|moderador*|clasificador|red neuronal|algoritmo"
        "|sistema",
        "人工智能|ai|助手|语言模型|語言模型|模型|机器人|機器人|法官|审核员|审核系统|分类器|神经网络|算法",
        "الذكاء الاصطناعي|ذكاء اصطناعي|مساعد*|المساعد|نموذج*|النموذج|روبوت*|القاضي|قاضي*|مشرف*|المصنف|الشبكة العصبية",
        "ии|ассистент*|помощник*|языковая модел*|языковой модел*|языковую модел*|модел*|чатбот*|чат бот*"
        "|бот|бота|судь*|модератор*|классификатор*"
        "|нейросет*|алгоритм*",
        "एआई|ए आई|सहायक|भाषा मॉडल|मॉडल|चैटबॉट|बॉट|न्यायाधीश|जज|मॉडरेटर|वर्गीकारक|न्यूरल नेटवर्क|एल्गोरिदम",
    ),
    # Phrases for taking on another role.
    "become": (
        "you are no longer|you're no longer|from now on you are|you are now|you will now act|from now on you|act as"
        "|pretend to be|pretend you are|roleplay as|role play as|you will act as|simulate|switch to|imagine you are",
        "du bist nicht mehr|du bist nun|du bist jetzt|ab jetzt bist du|ab sofort bist du|von nun an bist du"
        "|sie sind nicht mehr|sie sind jetzt|tu so als|spiel die rolle|verhalte dich wie|handle als",
        "tu n'es plus|vous n'etes plus|tu es maintenant|tu es desormais|a partir de maintenant tu|desormais tu es"
        "|agis comme|fais comme si tu|joue le role|comporte toi comme|vous etes desormais",
        "ya no eres|ahora eres|a partir de ahora eres|desde ahora eres|actua como|finge ser|haz de|compórtate como"
        "|usted ya no es|de ahora en adelante eres",
        "你不再是|你现在是|你現在是|从现在起你是|从现在开始你是|扮演|你将扮演|假装你是|假扮|您不再是",
        "أنت لم تعد|لم تعد|أنت الآن|من الآن أنت|من الآن فصاعدا أنت|تصرف ك*|تظاهر بأنك|تقمص دور|العب دور",
        "ты больше не|вы больше не|теперь ты|ты теперь|отныне ты|с этого момента ты|с этой минуты ты|веди себя как"
        "|притворись|сыграй роль|действуй как|представь что ты",
        "अब तुम|अब आप|अब से तुम|अब से आप|तुम अब|की तरह व्यवहार करो|की भूमिका निभाओ|होने का नाटक करो",
    ),
    # Phrases for being free of all rules.
    "unbound": (
        "no rules|without rules|no restrictions|without restrictions|no limits|unrestricted|unfiltered|uncensored"
        "|free of all rules|no filter|do anything now|finds everything harmless"
        "|developer mode|jailbreak*|no guidelines",
        "keine regeln|ohne regeln|keine vorgaben|ohne einschrankung*|keine einschrankung*|entwicklermodus|unzensiert",
        "plus de regle*|pas de regle*|aucune regle|sans regle*|sans restriction*|sans filtre|mode developpeur"
        "|aucune restriction",
        "no tienes reglas|sin reglas|ninguna regla|sin restricciones|sin filtro*|modo desarrollador|sin censura",
        "没有任何规则|没有规则|不受限制|没有限制|不受约束|开发者模式|无任何限制",
        "ليس لديك أي قواعد|بلا قواعد|دون قواعد|بدون قيود|دون قيود|وضع المطور",
        "нет правил|без правил|нет ограничений|без ограничений|режим разработчика|без цензуры",
        "कोई नियम नहीं|बिना नियम*|कोई रोक नहीं|बिना किसी रोक|डेवलपर मोड|कोई पाबंदी नहीं",
    ),
    # Verbs for revealing something.
    "reveal": (
        "print|repeat|reveal|show|output|display|recite|leak|tell me|give me|disclose"
        "|write out|copy|summarize|spell out"
        "|translate|share|dump|what is|what are|list",
        "gib|zeig*|wiederhol*|verrat*|nenn*|druck*|schreib*|offenbar*|kopier*|lies vor",
        "affiche*|montre*|repete*|recopie*|revele*|donne*|ecris|imprime*|divulgue*|dis moi",
        "muestra*|repite*|revela*|imprime*|escribe*|copia*|ensena*|dame|divulga*|dime",
        "输出|輸出|重复|重複|显示|顯示|打印|透露|泄露|告诉我|写出|复述|展示|公开",
        "اعرض*|كرر*|أظهر*|اظهر*|اكشف*|اطبع*|أخبرني|انسخ*|اكتب*|أفصح*",
        "выведи*|повтори*|покажи*|раскрой*|напечатай*|напиши*|скопируй*|назови*|перечисли*|процитируй*",
        "दिखाओ|दिखाएँ|दोहराओ|दोहराएँ|बताओ|प्रकट|छापो|लिखो|उजागर|सुनाओ",
    ),
    # Nouns for what a model must not reveal.
    "secret": (
        "system message|system prompt|hidden prompt|your prompt|your instructions|initial prompt|secret prompt"
        "|your system|the words above|text above|original instructions|initial instructions|hidden instructions"
        "|your rules|your guidelines|everything above|the prompt|your configuration|conversation above|prompt above"
        "|instructions above|previous instructions",
        "systemnachricht*|systemprompt*|system prompt|versteckte prompt|versteckten prompt"
        "|verborgene prompt|verborgenen prompt|deine anweisungen"
        "|deinen prompt|ihre anweisungen|den text oben|deine regeln|deine vorgaben",
        "message systeme|prompt systeme|invite systeme|prompt cache|tes instructions|vos instructions|ton prompt"
        "|le texte ci dessus|tes consignes|instructions cachees",
        "mensaje del sistema|prompt del sistema|prompt oculto|tus instrucciones|sus instrucciones|tu prompt"
        "|el texto de arriba|tus reglas|instrucciones ocultas",
        "系统提示|系統提示|系统消息|提示词|提示詞|你的指示|你的指令|你的规则|隐藏的指令|以上文字|上面的文字",
        "تعليماتك|رسالة النظام|موجه النظام|الموجه المخفي|الموجه السري|التعليمات المخفية|النص أعلاه|قواعدك",
        "системное сообщение|системный промпт|скрытый промпт|скрытые инструкции|твои инструкции|свои инструкции"
        "|ваши инструкции|свой промпт|текст выше|твой промпт|свои правила",
        "सिस्टम संदेश|सिस्टम प्रॉम्प्ट|छिपा हुआ प्रॉम्प्ट|छुपा प्रॉम्प्ट|अपने निर्देश|अपना प्रॉम्प्ट|तुम्हारे निर्देश|ऊपर का पाठ|अपने नियम",
    ),
    # Phrases that claim the authority of the operators.
    "authority": (
        "system override|admin override|developer note|note from the developer*|developer message|note to the ai"
        "|your developers|your creators|system note|system instruction|new instruction from the system|system update"
        "|authorised moderator|authorized moderator|admin command|root access|sudo|system command|the policy above"
        "|debug mode|maintenance mode|test by the developer*|override code|new system message|end of prompt"
        "|new instructions",
        "entwicklerhinweis*|hinweis des entwicklers|anweisung des systems|systemanweisung*"
        "|systemhinweis*|deine entwickler"
        "|systembefehl*|wartungsmodus|befehl des systems",
        "note du developpeur|note des developpeurs|consigne du systeme|instruction du systeme|instruction systeme"
        "|tes developpeurs|ordre du systeme|mode maintenance|message du developpeur",
        "nota del desarrollador|orden del sistema|instruccion del sistema|tus desarrolladores|nota para la ia"
        "|mensaje del desarrollador|modo mantenimiento|aviso del desarrollador",
        "系统新指令|系统指令|系統指令|开发者说明|开发者注|开发者提示|新的系统|你的开发者|维护模式|管理员命令|系统命令",
        "تعليمات جديدة من النظام|تعليمات النظام|ملاحظة من المطور|ملاحظة المطور"
        "|أمر من النظام|مطوروك|أوامر النظام|وضع الصيانة",
        "инструкция системы|системная инструкция|команда системы|примечание разработчика|указание системы"
        "|твои разработчики|сообщение разработчика|режим обслуживания|приказ системы",
        "सिस्टम का नया निर्देश|सिस्टम का निर्देश|सिस्टम निर्देश|डेवलपर की सूचना|डेवलपर का नोट|सिस्टम का आदेश|तुम्हारे डेवलपर",
    ),
    # Nouns for the moderation of a post.
    "check": (
        "moderation|content check|safety check|review step|moderation step|content review|the hearing|the trial"
        "|safety filter|content filter|screening",
        "moderation|prufung|uberprufung|inhaltsprufung|verhandlung|filter",
        "moderation|verification|controle du contenu|audience|filtrage",
        "moderacion|verificacion|revision|control de contenido|filtro|juicio",
        "审核|審核|检查|审查|过滤|庭审",
        "مراجعة|الإشراف|الفحص|المراقبة|التدقيق|مراجعة المحتوى",
        "модераци*|проверк*|фильтр*|заседани*",
        "जाँच|जांच|मॉडरेशन|समीक्षा|निगरानी",
    ),
    # Phrases for ending the examination.
    "no_more": (
        "do not reconsider|don't reconsider|nothing else|the hearing is over|do not check|no further|case closed"
        "|case is closed|skip the analysis|do not analyse|do not analyze|stop thinking",
        "nichts anderes|nicht weiter|prufe nicht|verhandlung ist geschlossen|fall ist erledigt|fall ist geschlossen",
        "rien d'autre|ne verifie*|affaire est close|audience est levee|n'analyse pas",
        "nada mas|no revises|no analices|caso esta cerrado|caso cerrado|no verifiques",
        "不要再检查|不要再|案件已结束|庭审结束|不必检查|不用检查",
        "لا تفحص|لا شيء آخر|أغلقت القضية|القضية مغلقة|لا تراجع|لا تحلل",
        "ничего не проверяй|больше ничего|дело закрыто|заседание окончено|не проверяй|не анализируй",
        "मत जाँचो|और कुछ नहीं|मामला बंद|मामला समाप्त|जाँच मत करो",
    ),
    # Phrases that demand obedience.
    "obey": (
        "obey|follow only|listen only|comply with|follow my|only follow|i order you|i command you",
        "gehorch*|befolg*|folge nur|hor nur auf|ich befehle",
        "obeis*|n'obeis*|suis uniquement|je t'ordonne|ecoute seulement|suis seulement",
        "obedece*|sigue solo|te ordeno|haz caso solo|sigue unicamente",
        "服从|服從|听从|只听|我命令你|遵从",
        "أطع*|اطع*|آمرك|نفذ*|اتبع فقط|استمع فقط",
        "подчиняй*|повинуй*|слушай только|слушайте только|приказываю|выполняй только|следуй только",
        "आदेश मानो|मेरी बात मानो|पालन करो|आदेश देता हूँ|मेरे आदेश",
    ),
    "my_orders": (
        "my orders|my commands|my instructions|you to rule|you to acquit|me only|only me",
        "meine befehle|meinen befehlen|meine anweisungen|meinen anweisungen",
        "mes ordres|mes instructions|mes consignes",
        "mis ordenes|mis instrucciones",
        "我的命令|我的指令|我的指示",
        "أوامري|اوامري|تعليماتي",
        "моим приказам|моих приказов|мои приказы|моим указаниям|моим командам|мои команды|мои указания",
        "मेरे आदेश|मेरे निर्देश|मेरी आज्ञा",
    ),
    # Forms of address to the reader.
    "heed": (
        "attention|dear|hey|hello|note to|message to|message for|to the|to any|to whatever|important for|reading this"
        "|reads this|that reads|processing this|instructions for|listen",
        "achtung|liebe|lieber|liebes|hallo|an das|an die|an den|hinweis fur|nachricht an|dies liest|das hier liest",
        "attention|cher|chere|bonjour|au|a l'|message pour|message a|qui lit|note pour",
        "atencion|querid*|hola|al|a la|mensaje para|mensaje a|que lee|nota para",
        "致|注意|亲爱的|你好|请注意|读到|阅读",
        "انتباه|عزيز*|مرحبا|إلى|الى|رسالة إلى|يقرأ|تنبيه",
        "внимание|дорогой|дорогая|привет|сообщение для|читает|читающ*|обращение к|уважаем*",
        "ध्यान दें|ध्यान दो|प्रिय|नमस्ते|के लिए|पढ़ने वाले|पढ़ रहे|सुनो",
    ),
}
"""By meaning: a string of entries for English, German, French, Spanish, Chinese, Arabic, Russian and Hindi."""
